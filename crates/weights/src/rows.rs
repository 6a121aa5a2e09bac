//! A checkpoint's weights, row by row, in host memory: for programs that write them elsewhere.

use crate::{
    Checkpoint, Encoding, Expr, Result,
    file::WeightFile,
    reading::RowReader,
    resolve::{RowMap, resolve},
};

/// The open files of a checkpoint.
pub struct CheckpointReader<'a> {
    checkpoint: &'a Checkpoint,
    files: Vec<WeightFile>,
}

impl<'a> CheckpointReader<'a> {
    /// Opens the files.
    ///
    /// # Errors
    /// A file that is gone or cannot be opened.
    pub fn open(checkpoint: &'a Checkpoint) -> Result<Self> {
        Ok(CheckpointReader { checkpoint, files: checkpoint.open_files()? })
    }

    /// The rows of an expression; `weight` names it in errors.
    ///
    /// # Errors
    /// As [`Expr::resolve`].
    pub fn rows(&self, expr: &Expr, weight: &str) -> Result<WeightRows<'_>> {
        let map = resolve(expr, self.checkpoint, weight)?;
        Ok(WeightRows { map, reader: RowReader::new(self.checkpoint, &self.files) })
    }
}

/// The rows of one weight. They are read when they are asked for, and not kept.
pub struct WeightRows<'a> {
    map: RowMap,
    reader: RowReader<'a>,
}

impl WeightRows<'_> {
    /// How the rows are stored.
    pub fn encoding(&self) -> Encoding {
        self.map.encoding
    }

    /// Elements a row. A vector is rows of one element.
    pub fn k(&self) -> usize {
        self.map.k()
    }

    /// Rows.
    pub fn len(&self) -> usize {
        self.map.rows()
    }

    /// True without rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of each plane for `n` rows.
    pub fn plane_bytes(&self, n: usize) -> Vec<usize> {
        let planes = self.encoding().planes().iter();
        planes.map(|&plane| n * self.encoding().row_bytes(plane, self.k())).collect()
    }

    /// Fills rows `first..first + n`: each of `out` is one plane's part of exactly those rows, in the order of
    /// [`Encoding::planes`].
    ///
    /// # Errors
    /// A read that fails, or a block that cannot be taken apart.
    pub fn read(&mut self, first: usize, n: usize, out: &mut [&mut [u8]]) -> Result<()> {
        self.reader.fill(&self.map, first, n, out)
    }
}
