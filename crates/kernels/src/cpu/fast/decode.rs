//! Rows of any encoding to f32: eight at a time where codes are small floats, by the plain definition elsewhere.

use portolan_weights::{BlockScale, Element, Encoding, Plane, Planes, decode_row};

use super::lanes::{all_i32x8, e4m3, e8m0, load_u8, mul8, store8};

/// As [`decode_row`], bit for bit.
///
/// # Safety
/// The processor has the features.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
#[cfg_attr(target_arch = "aarch64", target_feature(enable = "neon"))]
pub(super) unsafe fn decode(w: &Planes<'_>, row: usize, out: &mut [f32]) {
    let Encoding::FloatBlock { element: Element::E4M3, group, scale } = w.encoding else {
        return decode_row(w, row, out);
    };
    if !group.is_multiple_of(8) {
        return decode_row(w, row, out);
    }
    let (codes, scales) = (w.row(Plane::Codes, row), w.row(Plane::Scales, row));
    let groups = out.chunks_exact_mut(group.into()).zip(codes.chunks_exact(group.into())).zip(scales);
    for ((out, codes), &code) in groups {
        let code = all_i32x8(i32::from(code));
        let scale = match scale {
            BlockScale::E8M0 => e8m0(code),
            BlockScale::E4M3 => e4m3(code),
        };
        for (out, codes) in out.as_chunks_mut::<8>().0.iter_mut().zip(codes.as_chunks::<8>().0) {
            // SAFETY: arrays of eight.
            unsafe { store8(out.as_mut_ptr(), mul8(scale, e4m3(load_u8(codes.as_ptr())))) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{Rng, Weight, here},
        *,
    };

    #[test]
    fn every_small_float_and_scale() {
        if !here() {
            return;
        }
        for scale in [BlockScale::E8M0, BlockScale::E4M3] {
            let encoding = Encoding::FloatBlock { element: Element::E4M3, group: 32, scale };
            let mut weight = Weight::random(encoding, 256, 256, &mut Rng::new(8));
            // Row r has all codes, and the scale r.
            weight.planes[0] = (0..256 * 256).map(|i| i as u8).collect();
            weight.planes[1] = (0..256 * 8).map(|i| (i / 8) as u8).collect();
            let expected = weight.decoded();
            for row in 0..256 {
                let mut out = vec![0.0; 256];
                // SAFETY: the features are there.
                unsafe { decode(&weight.part(0, 256), row, &mut out) };
                let bits = |v: &[f32]| -> Vec<u32> {
                    v.iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
                };
                assert_eq!(bits(&out), bits(&expected[row * 256..(row + 1) * 256]), "{scale:?} {row}");
            }
        }
    }
}
