// What a kernel receives: one plain struct each, pointers first, then fixed-width fields.
// edgegs/kernels/headers.py builds the NumPy dtypes from this file; a test checks the offsets with a compiler.
#pragma once

namespace edgegs {

// One frame. Every array's first word says what indexes it.
struct FrameParams {
    // scene (pack.py lays it out)
    const float *splat_means;     // [n_splats, 3] world
    const float *splat_scales;    // [n_splats, 3] standard deviations
    const float *splat_quats;     // [n_splats, 4] unit, w first
    const float *splat_opacities; // [n_splats]
    const float *splat_sh;        // [n_splats, (sh_degree + 1)^2, 3]
    // project -> duplicate, rasterize
    float *splat_means2d;  // [n_splats, 2] pixels; the first pixel's centre is (0.5, 0.5)
    float *splat_depths;   // [n_splats] camera z
    float *splat_conics;   // [n_splats, 4] xx, xy, yy of the inverse 2D covariance, opacity
    float *splat_colors;   // [n_splats, 3] RGB
    uint16 *splat_rects;   // [n_splats, 4] tiles: x begin, y begin, x end, y end
    uint32 *splat_n_tiles; // [n_splats]
    uint64 *block_counts;  // [n_blocks, 2] instances, visible splats of each block's share
    // duplicate -> sort -> ranges
    uint64 *instance_keys_unsorted;   // [instance_capacity] tile << 32 | depth bits
    uint32 *instance_splats_unsorted; // [instance_capacity]
    uint64 *instance_keys;            // [instance_capacity] sorted
    uint32 *instance_splats;          // [instance_capacity] in the keys' order
    uint64 *counters;        // [2] n_instances, n_visible of the frame
    // ranges -> rasterize
    uint32 *tile_starts; // [n_tiles + 1] first instance of each tile; the next entry ends it
    // the picture; the last two may be null
    uint8 *pixel_bgr;           // [height, width, 3]
    float *pixel_rgb;           // [height, width, 3] 0..1 before rounding
    float *pixel_transmittance; // [height, width]
    // camera
    float viewmat[12]; // world to camera, three rows of four
    float camera_position[3];
    float fx;
    float fy;
    float cx;
    float cy;
    float near_plane;
    float far_plane;
    float background[3]; // RGB
    // sizes
    uint32 n_splats;
    uint32 sh_degree;
    uint32 width;
    uint32 height;
    uint32 n_tiles_x;
    uint32 n_tiles_y;
    uint32 instance_capacity;
    uint32 reserved; // keeps the size a multiple of 8
};

// One pass of the radix sort.
struct SortParams {
    const uint64 *keys_in;    // [capacity]
    const uint32 *values_in;  // [capacity]
    uint64 *keys_out;         // [capacity]
    uint32 *values_out;       // [capacity]
    uint32 *digit_block_counts; // [SORT_DIGITS, n_blocks]; sort_scan turns counts into first positions
    uint32 *digit_totals;       // [SORT_DIGITS]
    const uint64 *n_items;    // on the device: no round trip
    uint32 capacity;          // items beyond it were never written
    uint32 n_blocks;          // of sort_count and sort_scatter
    uint32 first_bit;         // of this pass's digit
    uint32 n_bits;            // of this pass's digit, at most SORT_DIGIT_BITS
};

} // namespace edgegs
