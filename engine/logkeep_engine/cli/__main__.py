"""`python -m logkeep_engine.cli`: the command `logkeep`."""

from logkeep_engine.cli import main

if __name__ == "__main__":
    main()
