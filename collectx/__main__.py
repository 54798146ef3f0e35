"""`python -m collectx`: the `collectx` command."""

try:
    from collectx.cli.main import main
except ModuleNotFoundError as error:
    if error.name != "collectx.cli":
        raise
    # In the source folder, the folder collectx hides the installed package, and the command's folder is beside it.
    raise SystemExit(
        "collectx: this folder is the source folder of collectx, which is installed elsewhere. Go to another folder, "
        "or install collectx from here: pip install -e ."
    ) from None

if __name__ == "__main__":
    main()
