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

#define PATCH_HEIGHT 8  // rows of the patch that one warp owns in the patch rasters: 8 or 16 pixels wide

// --- key bins ---
#define BIN_COLUMNS 4              // patches side by side in a bin, which is square
#define MAX_BINS 2048              // that a block counts for itself, in 8 KB of shared memory; more are counted in memory
#define OPACITY_STEPS 8192.0f      // of log2(opacity) a unit: 7.99 units fit 16 bits, alpha is right to 1 in 20,000
#define LOG2_255 7.99435344f       // log2(255): how far log2(alpha) may fall
#define REACH_SLACK 1.0e-3f        // added to that: rounding never drops a patch that alpha reaches
#define LIST_CAPACITY 4096         // entries of a list that are sorted at a time: 32 KB
#define LIST_BUCKETS 2048          // 8 KB
#define LIST_SKEW 512              // more entries than this in a bucket: they are not spread, and sorted another way
#define LIST_PARTS 64              // of half of LIST_CAPACITY and more, that a longer list is dealt into
#define LIST_BUCKET_BITS 11        // log2(LIST_BUCKETS)

// --- patch rasters ---
#define PATCH_BATCH 32             // splats staged at a time: one a lane
#define WALK_ROWS 4                // of a warp's width: entries of a list that are looked at together
#define STOP_EVERY 8               // splats drawn between two looks at the transmittance
#define PATCH_OPAQUE 0.00390625f   // 1/256: a patch ends when no pixel lets more through than a byte's step
#define FLUSH_BIAS 118.00564656f   // 126 - log2(255): 2^-FLUSH_BIAS / 255 is the least float that is not denormal
#define FLUSH_SCALE 3.3361017e35f  // 2^FLUSH_BIAS = 2^126 / 255

// --- duplicate ---
#define EMIT_BY_WARP 16 // a splat of more tiles than this is emitted by its whole warp

// --- exponential by bits (Schraudolph 1999, after RoofGS) ---
#define BITS_SCALE 8388608.0f    // 2^23: one step of the exponent in a float's bits
#define BITS_BIAS 126.954323f    // 127 - 0.045677, which centres the relative error
#define LOG2_E 1.44269504f       // log2(e)

// --- launch shapes (threads a block on CUDA and in host-check; host-fast runs one thread a block) ---
#define PROJECT_THREADS 256    // no shared state: any multiple of 32
#define DUPLICATE_THREADS 256  // one scan of 256 counts a step
#define SORT_THREADS 256       // one a digit
#define RANGES_THREADS 128     // a binary search each, a few thousand in all
#define RASTERIZE_THREADS 256  // one a pixel of the tile (block)
#define DUAL_THREADS 128       // two vertical pixels each (dual)
#define BINS_THREADS 256       // one splat each, then one instance each
#define FILL_THREADS 1024      // the larger a block's share, the fewer places it asks of each list
#define FILL_ITEMS 2            // that a thread of it holds at a time
#define LIST_THREADS 512       // four blocks fill a multiprocessor
#define FEW_LISTS_THREADS 1024 // where lists are too few to fill the device
#define PATCH_THREADS 128      // four warps, each with a patch of its own (patch)
#define CEILING_THREADS 256    // eight blocks fill a multiprocessor, of which each scheduler has 16 warps then
#define RASTERIZE_BATCH 256    // splats staged in shared memory at a time: 10 KB

// --- radix sort ---
#define SORT_DIGIT_BITS 8         // 256 counters a warp still fit shared memory
#define SORT_DIGITS 256           // 2^SORT_DIGIT_BITS
#define SORT_ITEMS_64 10          // a thread a step, 64-bit keys: 2,560 of a block and their values are 30 KB
#define SORT_ITEMS_32 14          // a thread a step, keys of 32 or 16 bits: 3,584 of a block are 28 KB or less
#define SORT_ITEMS_HOST_FAST 2048 // where one thread owns the block: shares are multiples of it

// --- ceilings ---
#define COPY_STEP 1024    // words of 16 bytes that a block moves at a time: four a thread
#define CEILING_CHAINS 8  // independent of one another, of a thread: enough for two units of latency 4
#define CEILING_STEPS 32  // of a chain between two looks at the loop's counter
#define CEILING_WORDS 256 // of 16 bytes in shared memory
