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

// --- the tile grid ---
#define TILE_SIZE 16    // pixels a side: 256 threads, one a pixel
#define TILE_PIXELS 256 // TILE_SIZE squared

// --- launch shapes (threads a block on CUDA and in host-check; host-fast runs one thread a block) ---
#define PROJECT_THREADS 256    // no shared state: any multiple of 32
#define DUPLICATE_THREADS 256  // one scan of 256 counts a step
#define SORT_THREADS 256       // one thread a digit when the table is summed
#define RANGES_THREADS 128     // a binary search each, a few thousand in all
#define RASTERIZE_THREADS 256  // one a pixel of the tile
#define RASTERIZE_BATCH 256    // splats staged in shared memory at a time: 10 KB

// --- radix sort ---
#define SORT_DIGIT_BITS 8        // 256 counters a warp still fit shared memory
#define SORT_DIGITS 256          // 2^SORT_DIGIT_BITS
#define SORT_ITEMS_PER_THREAD 16 // 4,096 keys a step: the table's cost is spread thin
#define SORT_ITEMS_HOST_FAST 2048 // keys a step where one thread owns the block: they stay in L1
