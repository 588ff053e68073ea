"""The experiments of the paper: in a wheel they lie here, in a checkout in the folder `experiments` beside `src`."""

from pathlib import Path

_HERE = Path(__file__).parent
if not (_HERE / "lab.py").exists():
    __path__ = [str(_HERE.parents[2] / "experiments")]
