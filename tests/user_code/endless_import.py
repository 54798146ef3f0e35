"""Cannot be imported in any time."""

import threading

threading.Event().wait()
