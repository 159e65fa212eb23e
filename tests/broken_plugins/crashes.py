"""Dies like a broken C extension."""

import os
import signal

os.kill(os.getpid(), signal.SIGSEGV)
