import sys

from edgegs.cli import main

if __name__ == "__main__":
    sys.exit(main())
