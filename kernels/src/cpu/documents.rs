//! Document boundaries of the current micro-batch, in the forms the operators need.

use crate::backend::ExecError;
use crate::ops::CHUNK;
use crate::plan::Geometry;

/// One document.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Document {
    /// First row.
    pub first: usize,
    /// Number of rows, possibly 0.
    pub rows: usize,
    /// Index of its first delta-rule chunk.
    pub first_chunk: usize,
}

/// Derived from one `cu_seqlens` buffer. Memory: 4 bytes a row; refilled without allocation.
#[derive(Clone, Debug)]
pub struct Documents {
    /// Every entry of `cu_seqlens` as a document, empty ones included.
    pub list: Vec<Document>,
    /// Position of each row in its document.
    pub position: Vec<u32>,
}

impl Documents {
    /// The documents of unpacked sequences.
    pub fn unpacked(geometry: Geometry) -> Self {
        let mut documents = Documents {
            list: Vec::with_capacity(geometry.max_documents),
            position: vec![0; geometry.rows()],
        };
        documents.fill(&geometry.unpacked_cu_seqlens());
        documents
    }

    /// Takes over a checked `cu_seqlens`.
    pub fn fill(&mut self, cu_seqlens: &[i32]) {
        self.list.clear();
        let mut first_chunk = 0;
        for ends in cu_seqlens.windows(2) {
            let (first, rows) = (ends[0] as usize, (ends[1] - ends[0]) as usize);
            self.list.push(Document {
                first,
                rows,
                first_chunk,
            });
            first_chunk += rows.div_ceil(CHUNK);
            for (i, position) in self.position[first..first + rows].iter_mut().enumerate() {
                *position = i as u32;
            }
        }
    }

    /// Checks a `cu_seqlens` against the geometry.
    ///
    /// # Errors
    /// [`ExecError::Documents`] with the first fault.
    pub fn check(buffer: &str, cu_seqlens: &[i32], geometry: Geometry) -> Result<(), ExecError> {
        let fail = |reason: String| {
            Err(ExecError::Documents {
                buffer: buffer.to_owned(),
                reason,
            })
        };
        let rows = geometry.rows() as i64;
        match (cu_seqlens.first(), cu_seqlens.last()) {
            (Some(0), Some(&last)) if i64::from(last) == rows => {}
            (first, last) => {
                return fail(format!(
                    "must run from 0 to {rows}, runs from {first:?} to {last:?}"
                ));
            }
        }
        for (i, ends) in cu_seqlens.windows(2).enumerate() {
            if ends[1] < ends[0] {
                return fail(format!(
                    "entry {} is {}, less than {} before it",
                    i + 1,
                    ends[1],
                    ends[0]
                ));
            }
            let t = geometry.seq_length as i32;
            if ends[1] > ends[0] && ends[0] / t != (ends[1] - 1) / t {
                return fail(format!(
                    "document {i} covers rows {}..{}, which belong to two sequences of {t} tokens",
                    ends[0], ends[1]
                ));
            }
        }
        Ok(())
    }
}
