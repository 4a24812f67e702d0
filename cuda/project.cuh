// Stage 1, project: one thread a splat. World-space Gaussian in; 2D mean, conic, depth, colour and the tiles
// that it can touch out. Block size: no shared state but one sum at the end; 256 keeps sm_53 full.
// Formulas: Kerbl et al. 2023 (3DGS), section 4 and appendix A; Zwicker et al. 2001 (EWA splatting), eq. 29-31.
#pragma once

namespace edgegs {

// --- storage: how a splat's attributes lie in memory ---
struct Shape {
    Vec3 scale;
    float quat[4]; // w first
    float opacity;
};

struct StorageFp32 {
    static DEVICE Shape shape(const FrameParams &p, uint32 splat) {
        Shape shape;
        const float *s = p.splat_scales + 3 * uint64(splat);
        shape.scale = {s[0], s[1], s[2]};
        for (int i = 0; i < 4; ++i) shape.quat[i] = p.splat_quats[4 * uint64(splat) + i];
        shape.opacity = p.splat_opacities[splat];
        return shape;
    }
    static DEVICE void prefetch_sh(const FrameParams &, uint32) {}
    template <int DEGREE> static DEVICE Vec3 sh_sum(const FrameParams &p, uint32 splat, const float (&basis)[16]) {
        constexpr int N = (DEGREE + 1) * (DEGREE + 1);
        const float *c = p.splat_sh + 3 * N * uint64(splat);
        Vec3 sum = {0.0f, 0.0f, 0.0f};
        for (int k = 0; k < N; ++k) {
            sum.x += basis[k] * c[3 * k];
            sum.y += basis[k] * c[3 * k + 1];
            sum.z += basis[k] * c[3 * k + 2];
        }
        return sum;
    }
};

struct alignas(16) Words16 { // one load
    uint32 words[4];
};

// RoofGS's layout, 76 bytes a splat at degree 3: means as float, the shape as eight FP16 numbers, SH as INT8 with
// one scale for each degree and channel.
struct StoragePacked {
    static DEVICE Shape shape(const FrameParams &p, uint32 splat) {
        const Words16 halves = ((const Words16 *)p.splat_halves)[splat];
        uint16 h[8];
        for (int i = 0; i < 8; ++i) h[i] = uint16(halves.words[i / 2] >> 16 * (i % 2));
        Shape shape;
        for (int i = 0; i < 4; ++i) shape.quat[i] = float_from_half(h[i]);
        shape.scale = {p.half_scale * float_from_half(h[4]), p.half_scale * float_from_half(h[5]),
                       p.half_scale * float_from_half(h[6])};
        shape.opacity = float_from_half(h[7]);
        return shape;
    }
    // The colour is needed last: what it is made of is on its way meanwhile.
    static DEVICE void prefetch_sh(const FrameParams &p, uint32 splat) {
        prefetch(p.splat_sh_words + p.sh_words * uint64(splat));
    }
    template <int DEGREE> static DEVICE Vec3 sh_sum(const FrameParams &p, uint32 splat, const float (&basis)[16]) {
        constexpr int N = (DEGREE + 1) * (DEGREE + 1), N_WORDS = (3 * N + 3) / 4;
        const uint32 *stored = p.splat_sh_words + p.sh_words * uint64(splat);
        uint32 words[N_WORDS];
        if (N_WORDS % 4 == 0) { // then a splat's words begin at a multiple of 16 bytes
            for (int i = 0; i < N_WORDS / 4; ++i) {
                const Words16 four = ((const Words16 *)stored)[i];
                for (int j = 0; j < 4; ++j) words[4 * i + j] = four.words[j];
            }
        } else {
            for (int i = 0; i < N_WORDS; ++i) words[i] = stored[i];
        }
        Vec3 sum = {0.0f, 0.0f, 0.0f};
        int k = 0;
        for (int degree = 0; degree <= DEGREE; ++degree) {
            Vec3 band = {0.0f, 0.0f, 0.0f};
            for (int m = 0; m < 2 * degree + 1; ++m, ++k) {
                band.x += basis[k] * signed_byte(words, 3 * k);
                band.y += basis[k] * signed_byte(words, 3 * k + 1);
                band.z += basis[k] * signed_byte(words, 3 * k + 2);
            }
            sum.x += band.x * p.sh_scales[3 * degree];
            sum.y += band.y * p.sh_scales[3 * degree + 1];
            sum.z += band.z * p.sh_scales[3 * degree + 2];
        }
        return sum;
    }
    static DEVICE float signed_byte(const uint32 *words, int index) {
        return signed_byte_to_float(words[index / 4], index % 4);
    }
};

// Real spherical harmonics in the order and with the signs of 3DGS files; d is the unit view direction.
// Source: Sloan, "Efficient Spherical Harmonic Evaluation" (2013), polynomial forms.
DEVICE void sh_basis(int degree, Vec3 d, float (&basis)[16]) {
    const float x = d.x, y = d.y, z = d.z;
    basis[0] = 0.28209479177387814f;
    if (degree < 1) return;
    basis[1] = -0.4886025119029199f * y;
    basis[2] = 0.4886025119029199f * z;
    basis[3] = -0.4886025119029199f * x;
    if (degree < 2) return;
    const float xx = x * x, yy = y * y, zz = z * z;
    basis[4] = 1.0925484305920792f * (x * y);
    basis[5] = -1.0925484305920792f * (y * z);
    basis[6] = 0.31539156525252005f * (2.0f * zz - xx - yy);
    basis[7] = -1.0925484305920792f * (x * z);
    basis[8] = 0.5462742152960396f * (xx - yy);
    if (degree < 3) return;
    basis[9] = -0.5900435899266435f * y * (3.0f * xx - yy);
    basis[10] = 2.890611442640554f * (x * y) * z;
    basis[11] = -0.4570457994644658f * y * (4.0f * zz - xx - yy);
    basis[12] = 0.3731763325901154f * z * (2.0f * zz - 3.0f * xx - 3.0f * yy);
    basis[13] = -0.4570457994644658f * x * (4.0f * zz - xx - yy);
    basis[14] = 1.445305721320277f * z * (xx - yy);
    basis[15] = -0.5900435899266435f * x * (xx - 3.0f * yy);
}

template <typename Storage, int DEGREE>
DEVICE Vec3 colour_of_degree(const FrameParams &p, uint32 splat, Vec3 direction) {
    float basis[16];
    sh_basis(DEGREE, direction, basis);
    return Storage::template sh_sum<DEGREE>(p, splat, basis);
}

DEVICE float channel(float sh) {
    const float value = sh + SH_OFFSET;
    return value > 0.0f ? (value < COLOUR_MAX ? value : COLOUR_MAX) : 0.0f; // NaN gives 0
}

template <typename Storage> DEVICE Vec3 view_colour(const FrameParams &p, uint32 splat, Vec3 mean) {
    Vec3 d = {mean.x - p.camera_position[0], mean.y - p.camera_position[1], mean.z - p.camera_position[2]};
    const float inverse_length = inverse_square_root(dot(d, d));
    d = {d.x * inverse_length, d.y * inverse_length, d.z * inverse_length};
    Vec3 sum;
    switch (p.sh_degree) { // the same for all: no divergence
    case 0: sum = colour_of_degree<Storage, 0>(p, splat, d); break;
    case 1: sum = colour_of_degree<Storage, 1>(p, splat, d); break;
    case 2: sum = colour_of_degree<Storage, 2>(p, splat, d); break;
    default: sum = colour_of_degree<Storage, 3>(p, splat, d); break;
    }
    return {channel(sum.x), channel(sum.y), channel(sum.z)};
}

// cov2d = A A^T + blur I with A = J W R S (2x3). The determinant comes from Lagrange's identity,
// |a|^2 |b|^2 - (a.b)^2 = |a x b|^2, so that thin splats lose no digits to cancellation.
DEVICE Cov2d project_covariance(const FrameParams &p, Vec3 t, Vec3 scale, const float (&q)[4]) {
    const float inverse_z = reciprocal(t.z);
    const float slope_x = clamp(t.x * inverse_z, -p.slope_x_max, p.slope_x_max);
    const float slope_y = clamp(t.y * inverse_z, -p.slope_y_max, p.slope_y_max);
    const float jx = p.fx * inverse_z, jy = p.fy * inverse_z;

    // the two rows of J W
    const float *v = p.viewmat;
    const Vec3 row_x = {jx * (v[0] - slope_x * v[8]), jx * (v[1] - slope_x * v[9]), jx * (v[2] - slope_x * v[10])};
    const Vec3 row_y = {jy * (v[4] - slope_y * v[8]), jy * (v[5] - slope_y * v[9]), jy * (v[6] - slope_y * v[10])};

    // columns of R from the unit quaternion, each times its scale
    const float w = q[0], x = q[1], y = q[2], z = q[3];
    const Vec3 axis_0 = {1.0f - 2.0f * (y * y + z * z), 2.0f * (x * y + w * z), 2.0f * (x * z - w * y)};
    const Vec3 axis_1 = {2.0f * (x * y - w * z), 1.0f - 2.0f * (x * x + z * z), 2.0f * (y * z + w * x)};
    const Vec3 axis_2 = {2.0f * (x * z + w * y), 2.0f * (y * z - w * x), 1.0f - 2.0f * (x * x + y * y)};
    const Vec3 a = {dot(row_x, axis_0) * scale.x, dot(row_x, axis_1) * scale.y, dot(row_x, axis_2) * scale.z};
    const Vec3 b = {dot(row_y, axis_0) * scale.x, dot(row_y, axis_1) * scale.y, dot(row_y, axis_2) * scale.z};

    const float aa = dot(a, a), bb = dot(b, b);
    const Vec3 c = cross(a, b);
    Cov2d cov;
    cov.xx = aa + COV2D_BLUR;
    cov.xy = dot(a, b);
    cov.yy = bb + COV2D_BLUR;
    cov.sharp_det = dot(c, c);
    cov.det = cov.sharp_det + COV2D_BLUR * (aa + bb) + COV2D_BLUR * COV2D_BLUR;
    return cov;
}

// Writes what the later stages read of a visible splat.
template <typename Storage>
DEVICE void write_splat(const FrameParams &p, uint32 splat, Vec3 mean, float depth, const Footprint &f) {
    const Vec3 colour = view_colour<Storage>(p, splat, mean);
    p.splat_means2d[2 * uint64(splat) + 0] = f.u;
    p.splat_means2d[2 * uint64(splat) + 1] = f.v;
    p.splat_depths[splat] = depth;
    p.splat_conics[4 * uint64(splat) + 0] = f.xx;
    p.splat_conics[4 * uint64(splat) + 1] = f.xy;
    p.splat_conics[4 * uint64(splat) + 2] = f.yy;
    p.splat_conics[4 * uint64(splat) + 3] = f.opacity;
    p.splat_colors[3 * uint64(splat) + 0] = colour.x;
    p.splat_colors[3 * uint64(splat) + 1] = colour.y;
    p.splat_colors[3 * uint64(splat) + 2] = colour.z;
}

// A splat on the screen, before its tiles are looked for.
struct Projection {
    Vec3 mean;  // world
    float depth; // camera z
    float u, v; // pixels
    Cov2d cov;
    float inverse_det;
    float opacity;
};

// False when it cannot be drawn: behind the near plane, beyond the far one, or not finite.
template <typename Storage> DEVICE bool project_splat(const FrameParams &p, uint32 splat, Projection &on_screen) {
    const float *m = p.splat_means + 3 * uint64(splat);
    const Vec3 mean = {m[0], m[1], m[2]};
    const Shape shape = Storage::shape(p, splat); // loaded beside the mean, not after it
    const float *v = p.viewmat;
    const Vec3 t = {v[0] * mean.x + v[1] * mean.y + v[2] * mean.z + v[3],
                    v[4] * mean.x + v[5] * mean.y + v[6] * mean.z + v[7],
                    v[8] * mean.x + v[9] * mean.y + v[10] * mean.z + v[11]};
    if (!(t.z > p.near_plane && t.z < p.far_plane)) return false;

    Storage::prefetch_sh(p, splat);
    const Cov2d cov = project_covariance(p, t, shape.scale, shape.quat);
    const float inverse_det = reciprocal(cov.det);
    const float inverse_z = reciprocal(t.z);
    const float u = p.fx * (t.x * inverse_z) + p.cx, w = p.fy * (t.y * inverse_z) + p.cy;
    // written so that NaN and infinity fail it (also a covariance whose determinant is beyond a float)
    if (!(inverse_det > 0.0f && u > -1e9f && u < 1e9f && w > -1e9f && w < 1e9f)) return false;
    on_screen = {mean, t.z, u, w, cov, inverse_det, shape.opacity};
    // Mip-Splatting (Yu et al. 2024), eq. 12: the blur spreads a splat, so it is dimmed by as much
    if (p.antialiased) on_screen.opacity *= square_root(cov.sharp_det * inverse_det);
    return true;
}

// Projects one splat and writes what the later stages read of it; false when it touches no tile.
template <typename Storage, typename Cull>
DEVICE bool project_footprint(const FrameParams &p, uint32 splat, Footprint &f, float &depth) {
    Projection on_screen;
    if (!project_splat<Storage>(p, splat, on_screen)) return false;
    f.u = on_screen.u;
    f.v = on_screen.v;
    f.xx = on_screen.cov.yy * on_screen.inverse_det;
    f.xy = -on_screen.cov.xy * on_screen.inverse_det;
    f.yy = on_screen.cov.xx * on_screen.inverse_det;
    f.opacity = on_screen.opacity;
    Cull::bound(p, on_screen.cov, f);
    if (!(f.rect.x_end > f.rect.x_begin && f.rect.y_end > f.rect.y_begin)) return false;
    depth = on_screen.depth;
    write_splat<Storage>(p, splat, on_screen.mean, depth, f);
    return true;
}

template <typename Storage, typename Cull> DEVICE void project(const FrameParams &p) {
    constexpr int THREADS = block_threads(PROJECT_THREADS);
    typedef SumShared<uint64, THREADS> Sums;
    struct Shared {
        Sums instances, visible;
    };
    SHARED(Shared, shared);

    uint64 n_instances = 0, n_visible = 0;
    const Share share = share_of_block(p.n_splats, THREADS);
    for (uint32 splat = share.begin + thread_rank(); splat < share.end; splat += THREADS) {
        Footprint f;
        float depth;
        uint32 n_tiles = 0;
        if (project_footprint<Storage, Cull>(p, splat, f, depth)) {
            n_tiles = Cull::n_tiles(p, f);
            Cull::write(p, splat, f);
        }
        p.splat_n_tiles[splat] = n_tiles;
        n_instances += n_tiles;
        n_visible += n_tiles > 0;
    }

    uint64 block_instances, block_visible;
    block_exclusive_sum<uint64, THREADS>(n_instances, block_instances, shared.instances);
    block_exclusive_sum<uint64, THREADS>(n_visible, block_visible, shared.visible);
    if (thread_rank() == 0) {
        p.block_counts[2 * block_rank() + 0] = block_instances;
        p.block_counts[2 * block_rank() + 1] = block_visible;
    }
}

} // namespace edgegs
