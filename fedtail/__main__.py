"""``python -m fedtail``: the command line where no script is on the path."""

from fedtail.cli import main

main()
