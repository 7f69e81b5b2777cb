"""Sums that nobody sees the parts of: masks that cancel, and no key that anybody shares.

Bonawitz, Ivanov, Kreuter, Marcedone, McMahan, Patel, Ramage, Segal, Seth, "Practical Secure
Aggregation for Privacy-Preserving Machine Learning", CCS 2017. One exchange of a method becomes
five: keys, shares, the method's own action with a masked answer, agreement, opening.
"""
