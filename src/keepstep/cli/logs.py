"""What a person reads while a command works: keepstep's log, to stderr."""

import logging


def set_up_logging() -> None:
    """Print the log; under the progress bar where that is a terminal."""
    from rich.logging import RichHandler

    from keepstep.job.progress import console

    logger = logging.getLogger("keepstep")
    logger.setLevel(logging.INFO)
    handler: logging.Handler
    if console.is_terminal:
        handler = RichHandler(console=console, show_path=False, highlighter=None, markup=False)
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    logger.handlers = [handler]
    logger.propagate = False
