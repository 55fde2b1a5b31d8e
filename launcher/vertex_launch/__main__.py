"""`python -m vertex_launch` is the command `vertex-launch`."""

if __name__ == "__main__":
    try:
        from vertex_launch.cli.main import main  # takes a second, in which one may press Ctrl-C

        main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
