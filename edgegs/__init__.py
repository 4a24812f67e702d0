"""edgegs renders 3D Gaussian Splatting scenes on small NVIDIA boards and measures itself while doing so."""

__version__ = "0.1.0"
