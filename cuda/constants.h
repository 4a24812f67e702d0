// Every number that the kernels share, each written once: `#define NAME value // unit, reason`.
// edgegs/kernels/headers.py parses this file, so host code and tests use the same values.
#pragma once

// --- the image (the original 3DGS renderer's; pictures are comparable only while these stay) ---
#define ALPHA_MIN 0.00392156862745098f // 1/255: below it a splat does not change an 8-bit pixel
#define POWER_MIN -5.5413f                // under ln(ALPHA_MIN): below it no opacity reaches ALPHA_MIN, rounding included
#define ALPHA_MAX 0.99f                // keeps the transmittance positive
#define TRANSMITTANCE_MIN 0.0001f      // a pixel stops before its transmittance would fall under this
#define COV2D_BLUR 0.3f                // pixels^2 on the 2D covariance's diagonal: every splat covers about a pixel
#define FRUSTUM_SLACK 1.3f             // x the half-FOV tangent: where the perspective Jacobian is clamped
#define RADIUS_SIGMAS 3.0f             // `radius` culling: half side of the square, in standard deviations
#define EIGENVALUE_FLOOR 0.1f          // pixels^4, under the square root of the larger eigenvalue
#define SH_OFFSET 0.5f                 // colour = SH + this, clamped at 0
#define COLOUR_MAX 65504.0f            // and here, so that no weight times colour is infinite, or 0 times it NaN

#define TIGHT_SLACK 1.0e-3f            // added to the squared Mahalanobis bound: rounding never drops a tile that alpha reaches

#define SCORE_STEPS 16777216.0f // 2^24: of one pixel's (T alpha)^2; 256 of ALPHA_MAX^2 still fit 32 bits

// --- the tile grid ---
#define TILE_SIZE 16    // pixels a side: 256 threads, one a pixel
#define TILE_PIXELS 256 // TILE_SIZE squared

#define PATCH_HEIGHT 8  // rows of the 16-wide patch that one warp owns in the `warp` raster

// --- duplicate ---
#define EMIT_BY_WARP 16 // a splat of more tiles than this is emitted by its whole warp

// --- exponential by bits (Schraudolph 1999, after RoofGS) ---
#define BITS_SCALE 8388608.0f    // 2^23: one step of the exponent in a float's bits
#define BITS_BIAS 126.954323f    // 127 - 0.045677, which centres the relative error
#define LOG2_E 1.44269504f       // log2(e)

// --- launch shapes (threads a block on CUDA and in host-check; host-fast runs one thread a block) ---
#define PROJECT_THREADS 256    // no shared state: any multiple of 32
#define DUPLICATE_THREADS 256  // one scan of 256 counts a step
#define SORT_THREADS 256       // one thread a digit when the table is summed
#define RANGES_THREADS 128     // a binary search each, a few thousand in all
#define RASTERIZE_THREADS 256  // one a pixel of the tile (block)
#define DUAL_THREADS 128       // two vertical pixels each (dual)
#define WARP_THREADS 128       // four warps, each with a patch of its own (warp)
#define RASTERIZE_BATCH 256    // splats staged in shared memory at a time: 10 KB

// --- radix sort ---
#define SORT_DIGIT_BITS 8        // 256 counters a warp still fit shared memory
#define SORT_DIGITS 256          // 2^SORT_DIGIT_BITS
#define SORT_ITEMS_PER_THREAD 16 // 4,096 keys a step: the table's cost is spread thin
#define SORT_ITEMS_HOST_FAST 2048 // keys a step where one thread owns the block: they stay in L1
