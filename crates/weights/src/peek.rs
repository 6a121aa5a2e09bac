//! Reading one small tensor on its own: for numbers that decide how a model is built.

use crate::{Checkpoint, Expr, Result, WeightError, reading::RowReader, resolve::resolve};

/// Most elements of a tensor that is read on its own.
const MOST_ELEMENTS: usize = 1 << 24;

impl Checkpoint {
    /// The elements of a tensor in f32. For small ones, of at most 2^24 elements: the whole tensor is read and decoded
    /// on this thread.
    ///
    /// # Errors
    /// [`WeightError::Expr`] for a larger one, before anything is read.
    pub fn read_f32(&self, name: &str) -> Result<Vec<f32>> {
        let map = resolve(&Expr::source(name).f32(), self, name)?;
        let elements: usize = map.shape.iter().product();
        if elements > MOST_ELEMENTS {
            return Err(WeightError::Expr {
                path: self.path.clone(),
                weight: name.to_owned(),
                reason: format!(
                    "it has {elements} elements, where at most {MOST_ELEMENTS} were expected. \
                     Download the checkpoint again"
                ),
            });
        }
        let files = self.open_files()?;
        let mut bytes = vec![0; map.resolved().bytes];
        RowReader::new(self, &files).fill(&map, 0, map.rows(), &mut [&mut bytes])?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
    }
}
