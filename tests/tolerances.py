"""Every tolerance of the tests, once, with the reason for its size."""

# --- project: float32 kernels against the float64 twin ---
#: Camera-space sums of three products of float32 numbers: a few units in the last place of the largest term.
DEPTH_RELATIVE = 2e-6
#: A position is a quotient times the focal length (a few hundred pixels): 1e-7 of it, and as much again from z.
MEAN2D_PIXELS = 2e-3
#: The conic is a quotient by the determinant; the kernels' determinant has no cancellation, its entries lose
#: digits only to the squared Jacobian: about 20 roundings.
CONIC_RELATIVE = 1e-4
#: Sixteen products summed in float32, at values below 10.
COLOUR_ABSOLUTE = 1e-5
#: A radius this near to an integer, or a square's edge this near to a tile's edge, may round either way.
RECT_BAND_PIXELS = 4e-3

# --- pictures ---
#: kernels' bar: exact variants differ by at most one step of 255 ...
IMAGE_MAX_STEPS = 1
#: ... outside the band where a float meets a threshold. The band is counted, not assumed: each such pixel must
#: be proven to sit on a threshold (see images.py), and there may be at most this share of them.
IMAGE_BAND_SHARE = 2e-4
#: alpha at 1/255 and transmittance at 1e-4: relative distance that float32 cannot tell. The power's error is
#: 1e-6 of terms that can be hundreds (dx^2 times the conic), so 1e-4 in the power, so 1e-4 of alpha.
ALPHA_BAND_RELATIVE = 2e-4
TRANSMITTANCE_BAND_RELATIVE = 5e-3
#: Depths this near may come in either order.
DEPTH_BAND_RELATIVE = 4e-7
#: dB, over all pixels and channels of the float pictures clipped to 0..1.
IMAGE_MIN_PSNR = 60.0

# --- exponential ---
#: alpha as a picture tells it, 1 - transmittance: a few units in the last place of 1, and of the power's rounding.
EXP_ALPHA_ABSOLUTE = 2e-6

# --- variants that approximate (kernels' quality table) ---
#: dB: what an image may lose where its PSNR to photographs is 27 dB and 0.028 dB is the price (RoofGS's).
PACKED_MIN_PSNR = 48.9
#: dB: key bins, over the exact pictures of the same storage: opacities in steps of 1 in 12,000 with the clamp of alpha
#: made on them, colours as FP16, and a patch finished where no pixel of it lets more than 1/256 through.
BINS_MIN_PSNR = 60.0
#: dB: Schraudolph's exponential, besides its proven bound of 0.03 a channel.
BITS_MIN_PSNR = 40.0
