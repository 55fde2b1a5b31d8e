"""`python -m vertex_launch` is the command `vertex-launch`."""

from vertex_launch.cli.main import main

if __name__ == "__main__":
    main()
