use std::path::Path;

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};

/// A safetensors file in memory, read for its numbers.
pub struct Tensors {
    bytes: Vec<u8>,
}

impl Tensors {
    /// Reads the file.
    ///
    /// # Panics
    /// When it cannot be read: the oracle itself is broken then.
    #[track_caller]
    pub fn open(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref();
        let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Tensors { bytes }
    }

    fn parsed(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).expect("a well-formed safetensors file")
    }

    /// Names of the tensors.
    pub fn names(&self) -> Vec<String> {
        self.parsed().names().into_iter().map(str::to_owned).collect()
    }

    /// Whether a tensor is there.
    pub fn has(&self, name: &str) -> bool {
        self.parsed().tensor(name).is_ok()
    }

    /// Shape of a tensor.
    #[track_caller]
    pub fn shape(&self, name: &str) -> Vec<usize> {
        self.parsed().tensor(name).unwrap_or_else(|e| panic!("{name}: {e}")).shape().to_vec()
    }

    /// Element type of a tensor, as the format names it: `BF16`, `U32`, ...
    #[track_caller]
    pub fn dtype(&self, name: &str) -> String {
        format!("{:?}", self.parsed().tensor(name).unwrap_or_else(|e| panic!("{name}: {e}")).dtype())
    }

    /// Raw bytes of a tensor.
    #[track_caller]
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        self.parsed().tensor(name).unwrap_or_else(|e| panic!("{name}: {e}")).data().to_vec()
    }

    /// A float tensor as f32.
    #[track_caller]
    pub fn f32(&self, name: &str) -> Vec<f32> {
        let parsed = self.parsed();
        let view = parsed.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        match view.dtype() {
            Dtype::F32 => chunks(view.data(), f32::from_le_bytes),
            Dtype::F16 => chunks(view.data(), |b| f16::from_le_bytes(b).to_f32()),
            Dtype::BF16 => chunks(view.data(), |b| bf16::from_le_bytes(b).to_f32()),
            other => panic!("{name}: {other:?} is not a float"),
        }
    }

    /// An i32 tensor.
    #[track_caller]
    pub fn i32(&self, name: &str) -> Vec<i32> {
        chunks(&self.bytes(name), i32::from_le_bytes)
    }

    /// An i32 tensor of token ids.
    #[track_caller]
    pub fn ids(&self, name: &str) -> Vec<u32> {
        self.i32(name).into_iter().map(|id| u32::try_from(id).expect("a token id")).collect()
    }
}

fn chunks<T, const N: usize>(bytes: &[u8], f: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.chunks_exact(N).map(|c| f(c.try_into().expect("N bytes"))).collect()
}
