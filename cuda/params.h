// What a kernel receives: one plain struct each, pointers first, then fixed-width fields.
// edgegs/kernels/headers.py builds the NumPy dtypes from this file; a test checks the offsets with a compiler.
#pragma once

namespace edgegs {

struct SplatRecord; // bins.cuh
struct BinInstance;
struct BinList;
struct ListShare;
struct ListEntry;

// One frame. Every array's first word says what indexes it.
struct FrameParams {
    // scene (pack.py lays it out)
    const float *splat_means;     // [n_splats, 3] world
    const float *splat_scales;    // [n_splats, 3] standard deviations
    const float *splat_quats;     // [n_splats, 4] unit, w first
    const float *splat_opacities; // [n_splats]
    const float *splat_sh;        // [n_splats, (sh_degree + 1)^2, 3]
    const uint16 *splat_halves;   // [n_splats, 8] storage packed: quat w x y z, scale x y z, opacity as FP16
    const uint32 *splat_sh_words; // [n_splats, sh_words] storage packed: SH as INT8, coefficient by coefficient
    // project -> duplicate, rasterize
    float *splat_means2d;  // [n_splats, 2] pixels; the first pixel's centre is (0.5, 0.5)
    float *splat_depths;   // [n_splats] camera z
    float *splat_conics;   // [n_splats, 4] xx, xy, yy of the inverse 2D covariance, opacity
    float *splat_colors;   // [n_splats, 3] RGB
    float *splat_extents;  // [n_splats, 2] culling tight: half width and height of the 1/255 ellipse's box, pixels
    uint16 *splat_rects;   // [n_splats, 4] tiles: x begin, y begin, x end, y end
    uint32 *splat_n_tiles; // [n_splats]
    uint64 *block_counts;  // [n_blocks, 2] instances, visible splats of each block's share
    uint64 *block_chain;   // [steps of the fused kernel] running sums of the blocks; 0 between frames
    uint32 *block_ticket;  // [1] the next block of the fused kernel; 0 between frames
    // key split: visible splats by depth
    uint32 *visible_depths;          // [n_splats] depth bits, in the order of splats
    uint32 *visible_splats_unsorted; // [n_splats]
    uint32 *visible_splats;          // [n_splats] front to back
    // key bins
    SplatRecord *splat_records; // [n_splats]
    BinInstance *bin_instances; // [instance_capacity] in no order; sort_lists deals long lists into them
    uint64 *instance_ticket;    // [1] the next of them; 0 between frames
    uint64 *visible_ticket;     // [1] splats with at least one bin; 0 between frames
    uint32 *step_ticket;        // [1] the next splats to project, after one step for each block; 0 between frames
    uint32 *bin_counts;         // [n_bins] entries; 0 between frames
    uint32 *bin_starts;         // [n_bins + 1] first entry of each list; the next one ends it
    BinList *bin_order;         // [n_bins] the longest lists first
    ListShare *list_shares;     // [n_list_shares] what the sort's blocks do, the longest lists first
    BinInstance *list_entries;  // [instance_capacity] bin by bin, each list in no order
    ListEntry *bin_lists;       // [instance_capacity] bin by bin, each list front to back
    uint64 *patch_counts;       // [3] of all patches, until every pixel was finished: list entries looked at, splats
                                //     picked, splats blended (with those that fill up a step)
    // duplicate -> sort -> ranges
    void *instance_keys_unsorted;     // [instance_capacity] of the variant's key type
    uint32 *instance_splats_unsorted; // [instance_capacity]
    void *instance_keys;              // [instance_capacity] sorted
    uint32 *instance_splats;          // [instance_capacity] in the keys' order
    uint64 *n_instances;              // [1] of the frame, also of those that found no room
    uint64 *n_visible;                // [1] splats with at least one tile
    // ranges -> rasterize
    uint32 *tile_starts; // [n_tiles + 1] first instance of each tile; the next entry ends it
    // the picture; the others may be null
    uint8 *pixel_bgr;            // [height, width, 3]
    const uint8 *pixel_backdrop; // [height, width, 3] BGR: what stands behind the splats, in place of `background`
    float *pixel_rgb;           // [height, width, 3] 0..1 before rounding
    float *pixel_transmittance; // [height, width]
    uint64 *splat_scores;       // [n_splats] sum over pixels and frames of (T alpha)^2, in steps of 1 / SCORE_STEPS
    // camera
    float viewmat[12]; // world to camera, three rows of four
    float camera_position[3];
    float fx;
    float fy;
    float cx;
    float cy;
    float slope_x_max; // where the perspective Jacobian is clamped
    float slope_y_max;
    float near_plane;
    float far_plane;
    float background[3]; // RGB
    // storage packed
    float sh_scales[12]; // [degree, RGB] of one step of the INT8 SH
    float half_scale;    // of one unit of the FP16 scales, a power of two
    // key packed32
    uint32 depth_begin; // bits of the float camera z of depth 0
    float depth_scale;  // steps a unit of those bits
    uint32 depth_bits; // of the key, below the tile's
    // sizes
    uint32 n_splats;
    uint32 sh_degree;
    uint32 sh_words; // of one splat, storage packed
    uint32 width;
    uint32 height;
    uint32 n_tiles_x;
    uint32 n_tiles_y;
    uint32 n_bins_x;
    uint32 n_bins_y;
    uint32 bins_step; // splats that a block projects at a time, at most BINS_THREADS
    uint32 bin_shift; // a bin is 2^this pixels wide and high
    uint32 n_list_shares; // blocks of sort_lists: one a bin, and as many more as may help with long lists
    uint32 instance_capacity;
    uint32 n_links; // of block_chain: blocks of the fused kernel
    uint32 antialiased; // whether the opacity makes up for what the blur adds to a splat
};

// One pass of the radix sort.
struct SortParams {
    const void *keys_in;        // [capacity] of the entry's key type
    const uint32 *values_in;    // [capacity]
    void *keys_out;             // [capacity]
    uint32 *values_out;         // [capacity]
    uint32 *digit_block_counts; // [SORT_DIGITS, n_blocks]; sort_scan turns counts into first positions
    uint32 *digit_totals;       // [SORT_DIGITS]
    const uint64 *n_items;    // on the device: no round trip
    uint32 capacity;          // items beyond it were never written
    uint32 n_blocks;          // of sort_count and sort_scatter
    uint32 first_bit;         // of this pass's digit
    uint32 n_bits;            // of this pass's digit, at most SORT_DIGIT_BITS
};

// One measurement of what the device can do (ceilings.cuh).
struct CeilingParams {
    const uint32 *words_in; // copy: [n_repeats, COPY_STEP, 4]; shared: [CEILING_WORDS, 4]
    uint32 *words_out;      // as words_in
    float *results;         // [n_blocks, CEILING_THREADS] what came out, so that none of it can be left out
    uint32 *n_workers;      // [1] written: lanes that worked, each pixel of a pack one; shared: warps
    float factor;           // multiply-adds: a chain goes to addend / (1 - factor)
    float addend;
    uint32 n_repeats; // rounds of the loop; copy: steps
    uint32 unused;    // a whole number of 8 bytes
};

} // namespace edgegs
