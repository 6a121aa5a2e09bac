//! What becomes of each encoding under each wish, and disks that fill up.

use std::{
    io::{self, Write},
    ops::ControlFlow,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use portolan_device::DType;
use portolan_weights::{BlockScale, Element, Encoding};

use super::{
    ConvertOptions, ConvertPlan, How, QuantMode,
    choose::{MXFP4, matrix, plain_type},
    write::Out,
};
use crate::Error;

const Q4_0: Encoding = Encoding::Affine { bits: 4, group: 32, meta: DType::F16 };
const Q8_0: Encoding = Encoding::Affine { bits: 8, group: 32, meta: DType::F16 };
const Q4_K: Encoding = Encoding::TwoLevel { bits: 4, group: 32, minima: true };
const Q6_K: Encoding = Encoding::TwoLevel { bits: 6, group: 16, minima: false };
const BF16: Encoding = Encoding::Dense(DType::BF16);
const NVFP4: Encoding = Encoding::FloatBlock { element: Element::E2M1, group: 16, scale: BlockScale::E4M3 };

/// What is asked of all modules, and of this one.
type Wish = (Option<QuantMode>, Option<u8>, Option<u16>, Option<u8>);

const NONE: Wish = (None, None, None, None);

#[track_caller]
fn check(from: Encoding, (mode, bits, group_size, keep): Wish, expected: &str, how: How) {
    let options = ConvertOptions { mode, bits, group_size, ..ConvertOptions::default() };
    let found = matrix(from, plain_type(from).unwrap(), 256, &options, keep);
    assert_eq!((found.to.to_string().as_str(), found.how), (expected, how), "{from}");
}

#[test]
fn choices() {
    let (affine, mxfp4) = (Some(QuantMode::Affine), Some(QuantMode::MxFp4));
    check(BF16, NONE, "affine4-g64-bf16", How::Quantized);
    check(Encoding::Dense(DType::F32), (None, Some(6), None, None), "affine6-g64-f32", How::Quantized);
    check(BF16, (mxfp4, None, None, None), "e2m1-g32-e8m0", How::Quantized);
    check(BF16, (mxfp4, None, None, Some(8)), "affine8-g64-bf16", How::Quantized);
    check(BF16, (None, Some(4), Some(32), Some(16)), "bf16", How::Kept);
    // Without a wish, and under a wish that it meets, what is quantized stays.
    check(Q4_0, NONE, "affine4-g32-f16", How::Lossless);
    check(Q8_0, NONE, "affine8-g32-f16", How::Lossless);
    check(MXFP4, NONE, "e2m1-g32-e8m0", How::Lossless);
    check(NVFP4, NONE, "e2m1-g16-e4m3", How::Lossless);
    check(Q4_0, (None, Some(4), None, None), "affine4-g32-f16", How::Lossless);
    check(Q4_0, (affine, None, Some(32), None), "affine4-g32-f16", How::Lossless);
    check(Q8_0, (None, Some(4), None, Some(8)), "affine8-g32-f16", How::Lossless);
    check(MXFP4, (mxfp4, Some(4), Some(32), None), "e2m1-g32-e8m0", How::Lossless);
    // Under another it does not.
    check(Q4_0, (None, Some(4), Some(64), None), "affine4-g64-f16", How::Requantized);
    check(Q8_0, (None, Some(4), None, None), "affine4-g64-f16", How::Requantized);
    check(MXFP4, (affine, None, None, None), "affine4-g64-bf16", How::Requantized);
    check(NVFP4, (mxfp4, None, None, None), "e2m1-g32-e8m0", How::Requantized);
    check(Q4_0, (mxfp4, None, None, None), "e2m1-g32-e8m0", How::Requantized);
    check(Q8_0, (None, None, None, Some(16)), "f16", How::Decoded);
    // Scales within scales are nothing that MLX has.
    check(Q4_K, NONE, "affine4-g32-f16", How::Requantized);
    check(Q6_K, NONE, "affine6-g32-f16", How::Requantized);
    check(Q4_K, (None, Some(8), Some(64), None), "affine8-g64-f16", How::Requantized);
    check(Q6_K, (None, None, None, Some(16)), "f16", How::Decoded);
}

/// A disk with room for so many bytes.
struct Disk {
    file: std::fs::File,
    room: Arc<AtomicU64>,
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.room.load(Ordering::Relaxed);
        if room == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        // As a disk does it: what still fits is written first.
        let n = self.file.write(&bytes[..bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX))])?;
        self.room.fetch_sub(n as u64, Ordering::Relaxed);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Out for Disk {
    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_all()
    }
}

/// The result of a conversion on a disk with room for so many bytes; the folder must be empty after a failure.
fn on_a_disk(room: u64) -> (Result<(), Error>, u64) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testkit/data/tiny/llama");
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("made");
    let plan = ConvertPlan::new(&source, &made, &ConvertOptions::default()).unwrap();
    let left = Arc::new(AtomicU64::new(room));
    let make = |path: &Path| -> io::Result<Box<dyn Out>> {
        Ok(Box::new(Disk { file: std::fs::File::create_new(path)?, room: left.clone() }))
    };
    let result = plan.run_with(&make, &mut |_, _| ControlFlow::Continue(()));
    let entries = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(entries, usize::from(result.is_ok()), "with room for {room} bytes");
    (result, plan.disk_bytes)
}

#[test]
fn a_full_disk_leaves_nothing_and_is_told_with_numbers() {
    let (whole, bytes) = on_a_disk(u64::MAX);
    whole.unwrap();
    on_a_disk(bytes).0.unwrap();
    for room in [0, 7, 1000, 20_000, bytes / 2, bytes - 1] {
        let error = on_a_disk(room).0.unwrap_err();
        let Error::DiskFull { path, written, free, .. } = &error else { panic!("{error:?}") };
        assert!(*written <= room && free.is_some(), "{room}: {error}");
        let last = if room == bytes - 1 { "config.json" } else { "model.safetensors" };
        assert!(path.ends_with(Path::new("made").join(last)), "{room}: {error}");
        assert!(error.to_string().contains("has been removed"), "{error}");
    }
}
