"""Imported first, so that the garbage collector rests while all else is imported, which takes it longer than many imports."""

import gc

gc.disable()
