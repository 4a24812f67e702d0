// Stage 1, project: one thread a splat. World-space Gaussian in; 2D mean, conic, depth, colour and the tiles
// that it can touch out. Block size: no shared state but one sum at the end; 256 keeps sm_53 full.
// Formulas: Kerbl et al. 2023 (3DGS), section 4 and appendix A; Zwicker et al. 2001 (EWA splatting), eq. 29-31.
#pragma once

namespace edgegs {

struct Vec3 {
    float x, y, z;
};

DEVICE float dot(Vec3 a, Vec3 b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
DEVICE Vec3 cross(Vec3 a, Vec3 b) {
    return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
}
DEVICE float clamp(float value, float low, float high) {
    return value < low ? low : (value > high ? high : value);
}

// --- storage: how a splat's attributes lie in memory ---
struct StorageFp32 {
    static DEVICE Vec3 mean(const FrameParams &p, uint32 splat) {
        const float *m = p.splat_means + 3 * uint64(splat);
        return {m[0], m[1], m[2]};
    }
    static DEVICE Vec3 scale(const FrameParams &p, uint32 splat) {
        const float *s = p.splat_scales + 3 * uint64(splat);
        return {s[0], s[1], s[2]};
    }
    static DEVICE void quat(const FrameParams &p, uint32 splat, float (&q)[4]) {
        for (int i = 0; i < 4; ++i) q[i] = p.splat_quats[4 * uint64(splat) + i];
    }
    static DEVICE float opacity(const FrameParams &p, uint32 splat) { return p.splat_opacities[splat]; }
    static DEVICE Vec3 sh(const FrameParams &p, uint32 splat, uint32 coefficient) {
        const uint32 n_coefficients = (p.sh_degree + 1) * (p.sh_degree + 1);
        const float *c = p.splat_sh + 3 * (uint64(splat) * n_coefficients + coefficient);
        return {c[0], c[1], c[2]};
    }
};

// Real spherical harmonics in the order and with the signs of 3DGS files; d is the unit view direction.
// Source: Sloan, "Efficient Spherical Harmonic Evaluation" (2013), polynomial forms.
DEVICE void sh_basis(uint32 degree, Vec3 d, float (&basis)[16]) {
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

template <typename Storage> DEVICE Vec3 view_colour(const FrameParams &p, uint32 splat, Vec3 mean) {
    Vec3 d = {mean.x - p.camera_position[0], mean.y - p.camera_position[1], mean.z - p.camera_position[2]};
    const float inverse_length = 1.0f / square_root(dot(d, d));
    d = {d.x * inverse_length, d.y * inverse_length, d.z * inverse_length};

    float basis[16];
    sh_basis(p.sh_degree, d, basis);
    Vec3 colour = {SH_OFFSET, SH_OFFSET, SH_OFFSET};
    const uint32 n_coefficients = (p.sh_degree + 1) * (p.sh_degree + 1);
    for (uint32 k = 0; k < n_coefficients; ++k) {
        const Vec3 c = Storage::sh(p, splat, k);
        colour.x += basis[k] * c.x;
        colour.y += basis[k] * c.y;
        colour.z += basis[k] * c.z;
    }
    return {colour.x > 0.0f ? colour.x : 0.0f, colour.y > 0.0f ? colour.y : 0.0f,
            colour.z > 0.0f ? colour.z : 0.0f};
}

// The 2D covariance (pixels^2) as its three distinct entries, and its determinant.
struct Cov2d {
    float xx, xy, yy, det;
};

// cov2d = A A^T + blur I with A = J W R S (2x3). The determinant comes from Lagrange's identity,
// |a|^2 |b|^2 - (a.b)^2 = |a x b|^2, so that thin splats lose no digits to cancellation.
DEVICE Cov2d project_covariance(const FrameParams &p, Vec3 t, Vec3 scale, const float (&q)[4]) {
    const float limit_x = FRUSTUM_SLACK * 0.5f * float(p.width) / p.fx;
    const float limit_y = FRUSTUM_SLACK * 0.5f * float(p.height) / p.fy;
    const float inverse_z = 1.0f / t.z;
    const float slope_x = clamp(t.x * inverse_z, -limit_x, limit_x);
    const float slope_y = clamp(t.y * inverse_z, -limit_y, limit_y);
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
    cov.det = dot(c, c) + COV2D_BLUR * (aa + bb) + COV2D_BLUR * COV2D_BLUR;
    return cov;
}

struct TileRect {
    uint16 x_begin, y_begin, x_end, y_end;
};

DEVICE uint32 tile_edge(float position, uint32 n_tiles) {
    return uint32(clamp(round_down(position * (1.0f / TILE_SIZE)), 0.0f, float(n_tiles)));
}

// --- culling: which tiles a splat can touch ---
// The original's rule: a square of RADIUS_SIGMAS standard deviations along the longer axis, whole pixels.
// Pixel i is centred on i + 0.5, so positions are shifted by half a pixel to count as the original counts.
struct CullRadius {
    static DEVICE TileRect rect(const FrameParams &p, float u, float v, const Cov2d &cov) {
        const float middle = 0.5f * (cov.xx + cov.yy);
        const float half_difference = 0.5f * (cov.xx - cov.yy);
        const float discriminant = half_difference * half_difference + cov.xy * cov.xy;
        const float lambda = middle + square_root(discriminant > EIGENVALUE_FLOOR ? discriminant : EIGENVALUE_FLOOR);
        const float radius = round_up(RADIUS_SIGMAS * square_root(lambda));
        TileRect rect;
        rect.x_begin = uint16(tile_edge(u - 0.5f - radius, p.n_tiles_x));
        rect.y_begin = uint16(tile_edge(v - 0.5f - radius, p.n_tiles_y));
        rect.x_end = uint16(tile_edge(u - 0.5f + radius + (TILE_SIZE - 1), p.n_tiles_x));
        rect.y_end = uint16(tile_edge(v - 0.5f + radius + (TILE_SIZE - 1), p.n_tiles_y));
        return rect;
    }
};

// Projects one splat and returns the number of its tiles; 0 when it is not visible.
template <typename Storage, typename Cull> DEVICE uint32 project_splat(const FrameParams &p, uint32 splat) {
    const Vec3 mean = Storage::mean(p, splat);
    const float *v = p.viewmat;
    const Vec3 t = {v[0] * mean.x + v[1] * mean.y + v[2] * mean.z + v[3],
                    v[4] * mean.x + v[5] * mean.y + v[6] * mean.z + v[7],
                    v[8] * mean.x + v[9] * mean.y + v[10] * mean.z + v[11]};
    if (!(t.z > p.near_plane && t.z < p.far_plane)) return 0;

    float quat[4];
    Storage::quat(p, splat, quat);
    const Cov2d cov = project_covariance(p, t, Storage::scale(p, splat), quat);
    const float u = p.fx * t.x / t.z + p.cx;
    const float w = p.fy * t.y / t.z + p.cy;
    const float inverse_det = 1.0f / cov.det;
    // written so that NaN and infinity fail it
    if (!(inverse_det > 0.0f && u > -1e9f && u < 1e9f && w > -1e9f && w < 1e9f)) return 0;

    const TileRect rect = Cull::rect(p, u, w, cov);
    if (rect.x_end <= rect.x_begin || rect.y_end <= rect.y_begin) return 0;

    const Vec3 colour = view_colour<Storage>(p, splat, mean);
    p.splat_means2d[2 * splat + 0] = u;
    p.splat_means2d[2 * splat + 1] = w;
    p.splat_depths[splat] = t.z;
    p.splat_conics[4 * uint64(splat) + 0] = cov.yy * inverse_det;
    p.splat_conics[4 * uint64(splat) + 1] = -cov.xy * inverse_det;
    p.splat_conics[4 * uint64(splat) + 2] = cov.xx * inverse_det;
    p.splat_conics[4 * uint64(splat) + 3] = Storage::opacity(p, splat);
    p.splat_colors[3 * uint64(splat) + 0] = colour.x;
    p.splat_colors[3 * uint64(splat) + 1] = colour.y;
    p.splat_colors[3 * uint64(splat) + 2] = colour.z;
    p.splat_rects[4 * uint64(splat) + 0] = rect.x_begin;
    p.splat_rects[4 * uint64(splat) + 1] = rect.y_begin;
    p.splat_rects[4 * uint64(splat) + 2] = rect.x_end;
    p.splat_rects[4 * uint64(splat) + 3] = rect.y_end;
    return uint32(rect.x_end - rect.x_begin) * uint32(rect.y_end - rect.y_begin);
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
        const uint32 n_tiles = project_splat<Storage, Cull>(p, splat);
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
