// Stage 5, rasterize: the splats of a tile's list are composited front to back into its pixels (Kerbl et al. 2023, eq. 3).
// Two rasters, one arithmetic (patch.cuh has a third, of key bins):
//   block  the original's mapping: a block a tile, a thread a pixel, splats staged in shared memory by the block
//   dual   after RoofGS: a thread owns two vertical pixels; a splat's power is folded into one polynomial of the
//          pixel's place in the tile, and log2(opacity) into that, so that alpha = 2^polynomial
// In host-fast one thread owns the tile, as rows of PACK_PIXELS pixels.
#pragma once

namespace edgegs {

static_assert(TILE_PIXELS == TILE_SIZE * TILE_SIZE, "a tile is square");

// --- exponential: e^x and 2^x for x <= 0 (and a little above) ---
struct ExpExact {
    static DEVICE Pixels exp(Pixels x) { return exp_exact(x); }
    static DEVICE Pixels exp2(Pixels x) { return exp2_exact(x); }
};
// The hardware's 2^x (on the host a short polynomial), without the standard function's range handling.
struct ExpFast {
    static DEVICE Pixels exp(Pixels x) { return exp2_fast(x * spread(LOG2_E)); }
    static DEVICE Pixels exp2(Pixels x) { return exp2_fast(x); }
};
// Schraudolph 1999: 2^x by writing x into a float's exponent; relative error within 0.03 (tests prove it).
struct ExpBits {
    static DEVICE Pixels exp(Pixels x) { return exp2(x * spread(LOG2_E)); }
    static DEVICE Pixels exp2(Pixels x) {
        const Pixels steps = multiply_add(x, spread(BITS_SCALE), spread(BITS_SCALE * BITS_BIAS));
        return pixels_from_step(select(steps < spread(0.0f), spread(0.0f), steps));
    }
};

// --- one pack of pixels ---
struct PixelState {
    Pixels transmittance, r, g, b;
    PixelMask alive;
};

struct Colour {
    float r, g, b;
};

DEVICE PixelState fresh_pixels(const FrameParams &p, uint32 x, uint32 y) {
    PixelState state;
    state.transmittance = spread(1.0f);
    state.r = state.g = state.b = spread(0.0f);
    // pixels outside the picture are finished from the start
    state.alive = y < p.height ? first_pixels(float(x)) < spread(float(p.width)) : no_pixels();
    return state;
}

// Composites alpha where `reached`; a pixel stops before its transmittance would fall under the minimum. Returns the
// weight of the colour.
DEVICE Pixels composite(PixelState &state, Pixels alpha, PixelMask reached, const Colour &colour) {
    PixelMask drawn = state.alive & reached & (alpha >= spread(ALPHA_MIN));
    const Pixels transmittance = state.transmittance * (spread(1.0f) - alpha);
    const PixelMask stopped = drawn & (transmittance < spread(TRANSMITTANCE_MIN));
    state.alive = state.alive & !stopped;
    drawn = drawn & !stopped;
    const Pixels weight = select(drawn, alpha * state.transmittance, spread(0.0f));
    state.r = multiply_add(weight, spread(colour.r), state.r);
    state.g = multiply_add(weight, spread(colour.g), state.g);
    state.b = multiply_add(weight, spread(colour.b), state.b);
    state.transmittance = select(drawn, transmittance, state.transmittance);
    return weight;
}

// To the nearest: left in the low bits by a number with no room for fractions.
DEVICE uint8 to_byte(float value) { return uint8(float_bits(clamp(value, 0.0f, 1.0f) * 255.0f + 8388608.0f)); }

DEVICE void write_bgr(const FrameParams &p, uint64 pixel, float r, float g, float b) {
    p.pixel_bgr[3 * pixel + 0] = to_byte(b);
    p.pixel_bgr[3 * pixel + 1] = to_byte(g);
    p.pixel_bgr[3 * pixel + 2] = to_byte(r);
}

DEVICE void write_pixel(const FrameParams &p, uint32 x, uint32 y, float r, float g, float b, float transmittance) {
    const uint64 pixel = uint64(y) * p.width + x;
    if (p.pixel_backdrop) {
        const float step = transmittance * (1.0f / 255.0f);
        b += step * float(p.pixel_backdrop[3 * pixel + 0]);
        g += step * float(p.pixel_backdrop[3 * pixel + 1]);
        r += step * float(p.pixel_backdrop[3 * pixel + 2]);
    } else {
        r += transmittance * p.background[0];
        g += transmittance * p.background[1];
        b += transmittance * p.background[2];
    }
    write_bgr(p, pixel, r, g, b);
    if (p.pixel_rgb) {
        p.pixel_rgb[3 * pixel + 0] = r;
        p.pixel_rgb[3 * pixel + 1] = g;
        p.pixel_rgb[3 * pixel + 2] = b;
    }
    if (p.pixel_transmittance) p.pixel_transmittance[pixel] = transmittance;
}

// Whether a frame is what most are: bytes over one colour. Asked once, and then written without asking pixel by pixel.
DEVICE bool writes_bytes_alone(const FrameParams &p) {
    return !p.pixel_backdrop && !p.pixel_rgb && !p.pixel_transmittance;
}

DEVICE void write_bytes(const FrameParams &p, uint32 x, uint32 y, float r, float g, float b, float transmittance) {
    write_bgr(p, uint64(y) * p.width + x, r + transmittance * p.background[0], g + transmittance * p.background[1],
              b + transmittance * p.background[2]);
}

DEVICE void write_pixels(const FrameParams &p, uint32 x, uint32 y, const PixelState &state) {
    for (int j = 0; j < PACK_PIXELS; ++j)
        if (x + j < p.width && y < p.height)
            write_pixel(p, x + j, y, pixel_of(state.r, j), pixel_of(state.g, j), pixel_of(state.b, j),
                        pixel_of(state.transmittance, j));
}

DEVICE Colour colour_of(const FrameParams &p, uint32 splat) {
    const float *colour = p.splat_colors + 3 * uint64(splat);
    return {colour[0], colour[1], colour[2]};
}

// --- block ---
struct StagedSplat {
    float u, v;       // pixels
    float xx, xy, yy; // conic, the halves folded in: power = xx dx^2 + xy dx dy + yy dy^2
    float opacity;
    Colour colour;
};

DEVICE StagedSplat stage_splat(const FrameParams &p, uint32 splat) {
    const float *conic = p.splat_conics + 4 * uint64(splat);
    StagedSplat s;
    s.u = p.splat_means2d[2 * uint64(splat) + 0];
    s.v = p.splat_means2d[2 * uint64(splat) + 1];
    s.xx = -0.5f * conic[0];
    s.xy = -conic[1];
    s.yy = -0.5f * conic[2];
    s.opacity = conic[3];
    s.colour = colour_of(p, splat);
    return s;
}

// x, y: centres of the pack's first pixel. Returns the weight of the colour.
template <typename Exponential> DEVICE Pixels blend(PixelState &state, const StagedSplat &s, Pixels x, float y) {
    const Pixels dx = x - spread(s.u);
    const float dy = y - s.v;
    const Pixels power = multiply_add(multiply_add(spread(s.xx), dx, spread(s.xy * dy)), dx, spread(s.yy * dy * dy));
    if (!any_pixel(power >= spread(POWER_MIN))) return spread(0.0f);
    const Pixels alpha = smaller(spread(ALPHA_MAX), spread(s.opacity) * Exponential::exp(power));
    return composite(state, alpha, power <= spread(0.0f), s.colour);
}

template <typename Exponential> DEVICE void rasterize_block(const FrameParams &p) {
    constexpr int THREADS = block_threads(RASTERIZE_THREADS);
    constexpr int PACKS_PER_ROW = TILE_SIZE / PACK_PIXELS;
    constexpr int N_PACKS = TILE_PIXELS / (PACK_PIXELS * THREADS); // of one thread
    struct Shared {
        StagedSplat splats[RASTERIZE_BATCH];
    };
    SHARED(Shared, shared);

    const uint32 tile = block_rank();
    const uint32 tile_x = tile % p.n_tiles_x * TILE_SIZE;
    const uint32 tile_y = tile / p.n_tiles_x * TILE_SIZE;
    const uint32 begin = p.tile_starts[tile], end = p.tile_starts[tile + 1];

    PixelState states[N_PACKS];
    for (int i = 0; i < N_PACKS; ++i) {
        const int pack = thread_rank() + i * THREADS;
        states[i] = fresh_pixels(p, tile_x + pack % PACKS_PER_ROW * PACK_PIXELS, tile_y + pack / PACKS_PER_ROW);
    }

    for (uint32 batch = begin; batch < end; batch += RASTERIZE_BATCH) {
        bool finished = true;
        for (int i = 0; i < N_PACKS; ++i) finished = finished && !any_pixel(states[i].alive);
        if (block_all(finished)) break; // also keeps the staging below behind the blending above

        const uint32 n_staged = end - batch < RASTERIZE_BATCH ? end - batch : RASTERIZE_BATCH;
        for (uint32 k = thread_rank(); k < n_staged; k += THREADS)
            shared.splats[k] = stage_splat(p, p.instance_splats[batch + k]);
        block_sync();

        for (uint32 k = 0; k < n_staged; ++k) {
            const StagedSplat s = shared.splats[k];
            for (int i = 0; i < N_PACKS; ++i) {
                const int pack = thread_rank() + i * THREADS;
                const float x = float(tile_x + pack % PACKS_PER_ROW * PACK_PIXELS) + 0.5f;
                const float y = float(tile_y + pack / PACKS_PER_ROW) + 0.5f;
                if (any_pixel(states[i].alive)) blend<Exponential>(states[i], s, first_pixels(x), y);
            }
        }
    }

    for (int i = 0; i < N_PACKS; ++i) {
        const int pack = thread_rank() + i * THREADS;
        write_pixels(p, tile_x + pack % PACKS_PER_ROW * PACK_PIXELS, tile_y + pack / PACKS_PER_ROW, states[i]);
    }
}

// --- folded: log2(alpha) as a polynomial of the place (x, y) relative to an origin near the pixels ---
// (with absolute pixel coordinates the sums at 4K would lose the digits that matter)
struct FoldedSplat {
    float xx, xy, yy, x, y, one; // log2(alpha) = xx x^2 + xy x y + yy y^2 + x x + y y + one
    Colour colour;
};

DEVICE FoldedSplat fold_splat(const FrameParams &p, uint32 splat, float origin_x, float origin_y) {
    const float *conic = p.splat_conics + 4 * uint64(splat);
    const float du = p.splat_means2d[2 * uint64(splat) + 0] - origin_x;
    const float dv = p.splat_means2d[2 * uint64(splat) + 1] - origin_y;
    FoldedSplat f;
    f.xx = (-0.5f * LOG2_E) * conic[0];
    f.xy = -LOG2_E * conic[1];
    f.yy = (-0.5f * LOG2_E) * conic[2];
    f.x = -(2.0f * f.xx * du + f.xy * dv);
    f.y = -(2.0f * f.yy * dv + f.xy * du);
    f.one = (f.xx * du + f.xy * dv) * du + f.yy * dv * dv + log_2(conic[3]);
    f.colour = colour_of(p, splat);
    return f;
}

// Leaves out what no alpha reaches: on an H200 the branch gains a quarter.
template <typename Exponential> DEVICE void blend_folded(PixelState &state, Pixels log2_alpha, const Colour &colour) {
    if (!any_pixel(log2_alpha >= spread(POWER_MIN * LOG2_E))) return;
    const Pixels alpha = smaller(spread(ALPHA_MAX), Exponential::exp2(log2_alpha));
    composite(state, alpha, all_pixels(), colour);
}

// --- dual ---
template <typename Exponential> DEVICE void rasterize_dual(const FrameParams &p) {
    constexpr int THREADS = block_threads(DUAL_THREADS);
    constexpr int PACKS_PER_ROW = TILE_SIZE / PACK_PIXELS;
    constexpr int N_PAIRS = TILE_PIXELS / (2 * PACK_PIXELS * THREADS); // of one thread
    struct Shared {
        FoldedSplat splats[RASTERIZE_BATCH];
    };
    SHARED(Shared, shared);

    const uint32 tile = block_rank();
    const uint32 tile_x = tile % p.n_tiles_x * TILE_SIZE;
    const uint32 tile_y = tile / p.n_tiles_x * TILE_SIZE;
    const float origin_x = float(tile_x + TILE_SIZE / 2), origin_y = float(tile_y + TILE_SIZE / 2);
    const uint32 begin = p.tile_starts[tile], end = p.tile_starts[tile + 1];

    PixelState upper[N_PAIRS], lower[N_PAIRS];
    for (int i = 0; i < N_PAIRS; ++i) {
        const int pair = thread_rank() + i * THREADS;
        const uint32 x = tile_x + pair % PACKS_PER_ROW * PACK_PIXELS, y = tile_y + pair / PACKS_PER_ROW * 2;
        upper[i] = fresh_pixels(p, x, y);
        lower[i] = fresh_pixels(p, x, y + 1);
    }

    for (uint32 batch = begin; batch < end; batch += RASTERIZE_BATCH) {
        bool finished = true;
        for (int i = 0; i < N_PAIRS; ++i) finished = finished && !any_pixel(upper[i].alive | lower[i].alive);
        if (block_all(finished)) break; // also keeps the staging below behind the blending above

        const uint32 n_staged = end - batch < RASTERIZE_BATCH ? end - batch : RASTERIZE_BATCH;
        for (uint32 k = thread_rank(); k < n_staged; k += THREADS)
            shared.splats[k] = fold_splat(p, p.instance_splats[batch + k], origin_x, origin_y);
        block_sync();

        for (uint32 k = 0; k < n_staged; ++k) {
            const FoldedSplat f = shared.splats[k];
            for (int i = 0; i < N_PAIRS; ++i) {
                if (!any_pixel(upper[i].alive | lower[i].alive)) continue;
                const int pair = thread_rank() + i * THREADS;
                const Pixels x = first_pixels(float(pair % PACKS_PER_ROW * PACK_PIXELS - TILE_SIZE / 2) + 0.5f);
                const float y = float(pair / PACKS_PER_ROW * 2 - TILE_SIZE / 2) + 0.5f;
                // in x at this height; one row down adds yy (2 y + 1) + y + xy x
                const Pixels flat = multiply_add(multiply_add(spread(f.xx), x, spread(f.xy * y + f.x)), x,
                                                 spread((f.yy * y + f.y) * y + f.one));
                const Pixels step = multiply_add(spread(f.xy), x, spread(f.yy * (2.0f * y + 1.0f) + f.y));
                blend_folded<Exponential>(upper[i], flat, f.colour);
                blend_folded<Exponential>(lower[i], flat + step, f.colour);
            }
        }
    }

    for (int i = 0; i < N_PAIRS; ++i) {
        const int pair = thread_rank() + i * THREADS;
        const uint32 x = tile_x + pair % PACKS_PER_ROW * PACK_PIXELS, y = tile_y + pair / PACKS_PER_ROW * 2;
        write_pixels(p, x, y, upper[i]);
        write_pixels(p, x, y + 1, lower[i]);
    }
}

} // namespace edgegs
