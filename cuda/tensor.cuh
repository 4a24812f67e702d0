// Stage rasterize of key `bins` by tensor cores (compute capability 8.0 and later): patch.cuh's warp, list and rules,
// with both sums of products that a blend is made of handed to the matrix units:
//
//   log2(alpha)   pixels x 5 powers of their place, times 5 coefficients x splats
//   colour        pixels x weights of 4 splats, times 4 splats x channels
//
// What is left for the other units, pixel by pixel: 2^x, the weight, the transmittance. A lane owns two pixels, one above
// the other; the four lanes of a quad own four pairs of rows. A product of matrices has the same rows for every lane of
// a quad, so each pair of rows has columns of its own: a splat is staged four times, about the middle of each pair.
//
// Halves hold 11 bits. The coefficients that would lose by it (xx, x, 1: a needle's cancel) are two halves each; products
// are exact and summed as floats. xy and y weigh little (|y| is half a pixel): what their halves lose is at most 0.0076 of
// log2(alpha), less than ALPHA_MAX leaves, so that alpha stays below 1. Weights and colours are right to 2^-12.
#pragma once

namespace edgegs {

struct alignas(16) TensorShared { // of a warp
    uint32 coefficients[PATCH_BATCH * 16]; // of a splat, for each pair of rows: (xx, xy), (x, y), 1 in two halves, the
                                           //     rest of (xx, x)
    uint32 colours[PATCH_BATCH / 4 * 16];  // of four splats: for each channel four halves; then zeros
    uint32 queue[PATCH_BATCH + WALK_ROWS * WARP_WIDTH];
};

DEVICE void stage_tensor(TensorShared &shared, uint32 place, const SplatRecord &record, float origin_x, float origin_y) {
    const PatchSplat s = fold_record(record, origin_x, origin_y);
    const float xx_high = cut_to_half(s.xx);
    for (int rows = 0; rows < 4; ++rows) {
        const float y = 2.0f * float(rows) - 3.0f; // of the rows' middle; theirs are y - 0.5 and y + 0.5
        const float x_slope = s.x + s.xy * y, y_slope = s.y + 2.0f * s.yy * y;
        const float one = s.one + s.y * y + s.yy * (y * y + 0.25f), high = cut_to_half(one);
        const float x_high = cut_to_half(x_slope);
        // no two of eight lanes write the same bank
        uint32 *words = shared.coefficients + place * 16 + (rows ^ (place / 2 & 3u)) * 4;
        words[0] = halves_from_floats(xx_high, s.xy);
        words[1] = halves_from_floats(x_high, y_slope);
        words[2] = halves_from_floats(high, one - high);
        words[3] = halves_from_floats(s.xx - xx_high, x_slope - x_high);
    }
    uint16 *colours = reinterpret_cast<uint16 *>(shared.colours + place / 4 * 16) + place % 4;
    colours[0] = uint16(record.opacity_red >> 16);
    colours[4] = uint16(record.green_blue);
    colours[8] = uint16(record.green_blue >> 16);
}

// Blends two splats over a pixel; their weights as halves.
DEVICE uint32 blend_two(float &transmittance, float log2_alpha, float log2_alpha_behind) {
    const float weight = exp2_flushed(log2_alpha) * transmittance;
    transmittance = multiply_add(weight, -FLUSH_SCALE, transmittance);
    const float weight_behind = exp2_flushed(log2_alpha_behind) * transmittance;
    transmittance = multiply_add(weight_behind, -FLUSH_SCALE, transmittance);
    return halves_from_floats(weight, weight_behind);
}

// A lane's share of eight columns of the patch: two pixels, one above the other.
struct TensorColumns {
    uint32 upper, lower;                            // the powers of x and y, a pair of halves
    float transmittance_upper, transmittance_lower; // times 2^FLUSH_BIAS
    float sums_near[4], sums_far[4];                // of colours; of rows' pairs 0 and 1, 2 and 3
};

template <int PATCH_WIDTH> DEVICE void draw_patch_tensor(const FrameParams &p, uint32 index, TensorShared &shared) {
    constexpr int N_COLUMNS = PATCH_WIDTH / 8;
    const Patch own = patch_of<PATCH_WIDTH>(p, index);
    const uint32 patch_x = own.x, patch_y = own.y;
    if (patch_x >= p.width || patch_y >= p.height) return; // the whole warp
    const float origin_x = float(patch_x + PATCH_WIDTH / 2), origin_y = float(patch_y + PATCH_HEIGHT / 2);
    const uint32 lane = lane_rank(), column = lane / 4, rows = lane % 4;
    const uint32 pixel_x = patch_x + column, pixel_y = patch_y + 2 * rows;

    TensorColumns columns[N_COLUMNS];
    for (int i = 0; i < N_COLUMNS; ++i) {
        TensorColumns &pixels = columns[i];
        const float x = float(int(column)) + (8.0f * i + 0.5f - 0.5f * PATCH_WIDTH);
        const float firsts[4] = {x * x, x, 1.0f, x * x}, seconds[4] = {-0.5f * x, -0.5f, 1.0f, x};
        pixels.upper = halves_from_floats(firsts[rows], seconds[rows]);
        pixels.lower = rows < 2 ? pixels.upper ^ 0x80000000u : pixels.upper; // the other sign of y
        const bool inside = pixel_x + 8 * i < p.width;
        pixels.transmittance_upper = inside && pixel_y < p.height ? FLUSH_SCALE : 0.0f;
        pixels.transmittance_lower = inside && pixel_y + 1 < p.height ? FLUSH_SCALE : 0.0f;
        for (int j = 0; j < 4; ++j) pixels.sums_near[j] = pixels.sums_far[j] = 0.0f;
    }

    for (uint32 i = lane; i < PATCH_BATCH / 4 * 16; i += WARP_WIDTH) shared.colours[i] = 0;
    // of the second matrix: splat column % 2 about rows column / 2; pair's XOR comes in the loop
    const uint32 mine = column % 2 * 16 + column / 2 * 4 + rows;
    // of the third: channel column % 4, of the lane's own pixels; of others zeros
    const uint32 channel = column % 4 * 2, zeros = 8;
    const uint32 colour_near = rows == column / 4 ? channel : zeros, colour_far = rows == column / 4 + 2 ? channel : zeros;

    uint32 n_queued = 0, n_walked = 0;
    bool alive = true;
    for (uint32 next = own.begin; alive && (next < own.end || n_queued > 0);) {
        pick_splats(p, shared.queue, own.bit, next, own.end, n_queued, n_walked);
        const uint32 n_staged = n_queued < PATCH_BATCH ? n_queued : PATCH_BATCH;
        SplatRecord record = {};
        record.opacity_red = 0xffffu; // an opacity of 2^-8: below 1/255
        if (lane < n_staged) record = p.splat_records[shared.queue[lane]];
        stage_tensor(shared, lane, record, origin_x, origin_y);
        n_queued -= n_staged;
        for (uint32 k = lane; k < n_queued; k += WARP_WIDTH) shared.queue[k] = shared.queue[n_staged + k];
        warp_sync();

        for (uint32 first = 0; first < n_staged && alive; first += STOP_EVERY) {
            const uint32 *coefficients = shared.coefficients + first * 16;
            for (uint32 four = 0; four < STOP_EVERY / 4; ++four) {
                uint32 weights[N_COLUMNS][4];
                for (uint32 pair = 0; pair < 2; ++pair) {
                    const uint32 which = 2 * four + pair; // the first's is a multiple of 4
                    const uint32 factors = coefficients[which * 32 + (mine ^ which * 4)];
                    for (int i = 0; i < N_COLUMNS; ++i) {
                        TensorColumns &pixels = columns[i];
                        float log2_alpha[4] = {};
                        multiply_halves_8(log2_alpha, pixels.upper, pixels.lower, factors);
                        weights[i][2 * pair + 0] = blend_two(pixels.transmittance_upper, log2_alpha[0], log2_alpha[1]);
                        weights[i][2 * pair + 1] = blend_two(pixels.transmittance_lower, log2_alpha[2], log2_alpha[3]);
                    }
                }
                const uint32 *colours = shared.colours + (first / 4 + four) * 16;
                for (int i = 0; i < N_COLUMNS; ++i) {
                    multiply_halves_16(columns[i].sums_near, weights[i], colours + colour_near);
                    multiply_halves_16(columns[i].sums_far, weights[i], colours + colour_far);
                }
            }
            float most = 0.0f;
            for (const TensorColumns &pixels : columns)
                most = larger(most, larger(pixels.transmittance_upper, pixels.transmittance_lower));
            alive = warp_ballot(most >= PATCH_OPAQUE * FLUSH_SCALE) != 0;
        }
    }

    // a lane's sums are of other lanes' pixels: red and green of rows' pair 0 or 2 in lane 0 of the quad, blue in lane 1
    const int source = (lane & ~3u) + rows % 2 * 2;
    const bool is_plain = writes_bytes_alone(p);
    for (int i = 0; i < N_COLUMNS; ++i) {
        const TensorColumns &pixels = columns[i];
        const auto collect = [&](int index, int from) {
            const float near = warp_shuffle(pixels.sums_near[index], from), far = warp_shuffle(pixels.sums_far[index], from);
            return rows < 2 ? near : far;
        };
        for (int row = 0; row < 2; ++row) {
            float r = collect(2 * row, source), g = collect(2 * row + 1, source);
            float b = collect(2 * row, source + 1);
            const float scaled = row == 0 ? pixels.transmittance_upper : pixels.transmittance_lower;
            float transmittance = scaled * (1.0f / FLUSH_SCALE);
            if (!alive) cover_rest(r, g, b, transmittance);
            const uint32 x = pixel_x + 8 * i, y = pixel_y + row;
            if (x < p.width && y < p.height) {
                if (is_plain)
                    write_bytes(p, x, y, r, g, b, transmittance);
                else
                    write_pixel(p, x, y, r, g, b, transmittance);
            }
        }
    }
}

template <int PATCH_WIDTH> DEVICE void rasterize_tensor(const FrameParams &p) {
    constexpr int WARPS = block_threads(PATCH_THREADS) / WARP_WIDTH;
    constexpr uint32 PATCHES = BIN_COLUMNS * (BIN_COLUMNS * PATCH_WIDTH / PATCH_HEIGHT);
    struct Shared {
        TensorShared warps[WARPS];
    };
    SHARED(Shared, shared);
    let_next_begin();
    wait_for_previous();
    const uint32 n_patches = p.n_bins_x * p.n_bins_y * PATCHES, patch = block_rank() * WARPS + warp_rank();
    if (patch < n_patches) draw_patch_tensor<PATCH_WIDTH>(p, patch, shared.warps[warp_rank()]);
}

} // namespace edgegs
