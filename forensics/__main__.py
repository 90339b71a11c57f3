"""`python -m forensics`."""

from forensics.cli import main

main()
