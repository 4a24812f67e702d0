// Stage 5, rasterize: one block a tile. The block stages RASTERIZE_BATCH splats of the tile's list in shared
// memory, then every thread blends them front to back into its own pixels: alpha compositing after Kerbl et
// al. 2023, eq. 3. On CUDA and in host-check a thread owns one pixel (the original's mapping); in host-fast one
// thread owns the tile, as rows of PACK_PIXELS pixels (the vector unit's width). The arithmetic is the same.
#pragma once

namespace edgegs {

static_assert(TILE_PIXELS == TILE_SIZE * TILE_SIZE, "a tile is square");

struct StagedSplat {
    float u, v;             // pixels
    float xx, xy, yy;       // conic, the halves folded in: power = xx dx^2 + xy dx dy + yy dy^2
    float opacity;
    float r, g, b;
};

struct RasterizeShared {
    StagedSplat splats[RASTERIZE_BATCH];
};

struct PixelState {
    Pixels transmittance, r, g, b;
    PixelMask alive;
};

// --- exponential ---
struct ExpExact {
    static DEVICE Pixels exp(Pixels power) { return exp_exact(power); }
};

DEVICE StagedSplat stage_splat(const FrameParams &p, uint32 splat) {
    const float *conic = p.splat_conics + 4 * uint64(splat);
    const float *colour = p.splat_colors + 3 * uint64(splat);
    StagedSplat s;
    s.u = p.splat_means2d[2 * splat + 0];
    s.v = p.splat_means2d[2 * splat + 1];
    s.xx = -0.5f * conic[0];
    s.xy = -conic[1];
    s.yy = -0.5f * conic[2];
    s.opacity = conic[3];
    s.r = colour[0];
    s.g = colour[1];
    s.b = colour[2];
    return s;
}

// Blends one splat into the thread's pixels; x0, y are the centres of the pack's first pixel.
template <typename Exponential> DEVICE void blend(PixelState &state, const StagedSplat &s, Pixels x, float y) {
    const Pixels dx = x - spread(s.u);
    const float dy = y - s.v;
    const Pixels power = multiply_add(multiply_add(spread(s.xx), dx, spread(s.xy * dy)), dx, spread(s.yy * dy * dy));
    if (!any_pixel(power >= spread(POWER_MIN))) return;

    const Pixels alpha = smaller(spread(ALPHA_MAX), spread(s.opacity) * Exponential::exp(power));
    PixelMask drawn = state.alive & (power <= spread(0.0f)) & (alpha >= spread(ALPHA_MIN));
    const Pixels transmittance = state.transmittance * (spread(1.0f) - alpha);
    const PixelMask stopped = drawn & (transmittance < spread(TRANSMITTANCE_MIN));
    state.alive = state.alive & !stopped;
    drawn = drawn & !stopped;

    const Pixels weight = select(drawn, alpha * state.transmittance, spread(0.0f));
    state.r = multiply_add(weight, spread(s.r), state.r);
    state.g = multiply_add(weight, spread(s.g), state.g);
    state.b = multiply_add(weight, spread(s.b), state.b);
    state.transmittance = select(drawn, transmittance, state.transmittance);
}

DEVICE uint8 to_byte(float value) { return uint8(clamp(value, 0.0f, 1.0f) * 255.0f + 0.5f); }

DEVICE void write_pixel(const FrameParams &p, uint32 x, uint32 y, float r, float g, float b, float transmittance) {
    const uint64 pixel = uint64(y) * p.width + x;
    r += transmittance * p.background[0];
    g += transmittance * p.background[1];
    b += transmittance * p.background[2];
    p.pixel_bgr[3 * pixel + 0] = to_byte(b);
    p.pixel_bgr[3 * pixel + 1] = to_byte(g);
    p.pixel_bgr[3 * pixel + 2] = to_byte(r);
    if (p.pixel_rgb) {
        p.pixel_rgb[3 * pixel + 0] = r;
        p.pixel_rgb[3 * pixel + 1] = g;
        p.pixel_rgb[3 * pixel + 2] = b;
    }
    if (p.pixel_transmittance) p.pixel_transmittance[pixel] = transmittance;
}

template <typename Exponential> DEVICE void rasterize_block(const FrameParams &p) {
    constexpr int THREADS = block_threads(RASTERIZE_THREADS);
    constexpr int PACKS_PER_ROW = TILE_SIZE / PACK_PIXELS;
    constexpr int N_PACKS = TILE_PIXELS / (PACK_PIXELS * THREADS); // of one thread
    SHARED(RasterizeShared, shared);

    const uint32 tile = block_rank();
    const uint32 tile_x = tile % p.n_tiles_x * TILE_SIZE;
    const uint32 tile_y = tile / p.n_tiles_x * TILE_SIZE;
    const uint32 begin = p.tile_starts[tile], end = p.tile_starts[tile + 1];

    // pixels outside the picture are finished from the start
    PixelState states[N_PACKS];
    for (int i = 0; i < N_PACKS; ++i) {
        const int pack = thread_rank() + i * THREADS;
        const uint32 x = tile_x + pack % PACKS_PER_ROW * PACK_PIXELS, y = tile_y + pack / PACKS_PER_ROW;
        states[i].transmittance = spread(1.0f);
        states[i].r = states[i].g = states[i].b = spread(0.0f);
        states[i].alive = y < p.height ? first_pixels(float(x)) < spread(float(p.width)) : no_pixels();
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
        const uint32 x = tile_x + pack % PACKS_PER_ROW * PACK_PIXELS, y = tile_y + pack / PACKS_PER_ROW;
        for (int j = 0; j < PACK_PIXELS; ++j)
            if (x + j < p.width && y < p.height)
                write_pixel(p, x + j, y, pixel_of(states[i].r, j), pixel_of(states[i].g, j),
                            pixel_of(states[i].b, j), pixel_of(states[i].transmittance, j));
    }
}

} // namespace edgegs
