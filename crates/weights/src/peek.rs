//! Reading one small tensor on its own: for numbers that decide how a model is built.

use crate::{Checkpoint, Expr, Result, file::WeightFile, reading::RowReader, resolve::resolve};

impl Checkpoint {
    /// The elements of a tensor in f32. For small ones: the whole tensor is read and decoded on this thread.
    pub fn read_f32(&self, name: &str) -> Result<Vec<f32>> {
        let map = resolve(&Expr::source(name).f32(), self, name)?;
        let files = self.files.iter().map(|f| WeightFile::open(f)).collect::<Result<Vec<_>>>()?;
        let mut bytes = vec![0; map.resolved().bytes];
        RowReader::new(self, &files).fill(&map, 0, map.rows(), &mut [&mut bytes])?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
    }
}
