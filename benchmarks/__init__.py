"""Speed and scale, measured as ratios within one run: machines differ, ratios less so."""
