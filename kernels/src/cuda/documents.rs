//! What kernels need to know about documents and tokens, derived on the host when ids are written.

use crate::ops::CHUNK;

/// Chunk and document lists for the delta rule and the convolution. Counts travel with them, so that one captured
/// launch serves any packing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DocumentTables {
    /// Per chunk: first row, rows, document, index within the document. Padded to the most chunks a plan allows.
    pub(super) chunks: Vec<[i32; 4]>,
    /// Per document: first chunk, number of chunks.
    pub(super) docs: Vec<[i32; 2]>,
    /// Documents, chunks.
    pub(super) counts: [i32; 2],
    /// Per row: first row of its document.
    pub(super) start: Vec<i32>,
}

impl DocumentTables {
    /// From checked `cu_seqlens`.
    pub(super) fn new(cu_seqlens: &[i32], max_chunks: usize) -> Self {
        let documents = cu_seqlens.len().saturating_sub(1);
        let rows = cu_seqlens.last().copied().unwrap_or(0).max(0) as usize;
        let mut t = DocumentTables {
            chunks: Vec::with_capacity(max_chunks),
            docs: Vec::with_capacity(documents),
            counts: [documents as i32, 0],
            start: vec![0; rows],
        };
        for (d, w) in cu_seqlens.windows(2).enumerate() {
            let (first, end) = (w[0], w[1]);
            t.start[first as usize..end as usize].fill(first);
            let before = t.chunks.len() as i32;
            let mut row = first;
            while row < end {
                let n = (end - row).min(CHUNK as i32);
                t.chunks.push([row, n, d as i32, t.chunks.len() as i32 - before]);
                row += n;
            }
            t.docs.push([before, t.chunks.len() as i32 - before]);
        }
        t.counts[1] = t.chunks.len() as i32;
        t.chunks.resize(max_chunks.max(t.chunks.len()), [0; 4]);
        t
    }
}

/// Row numbers sorted by token, equal tokens in ascending row order: the order of the embedding gradient's sums.
pub(super) fn rows_by_token(tokens: &[i32]) -> Vec<i32> {
    let mut keys: Vec<u64> = tokens
        .iter()
        .enumerate()
        .map(|(r, &t)| (u64::from(t as u32) << 32) | r as u64)
        .collect();
    keys.sort_unstable();
    keys.into_iter().map(|k| k as u32 as i32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_restart_at_each_document() {
        let t = DocumentTables::new(&[0, 65, 65, 70, 70], 8);
        assert_eq!(t.counts, [4, 3]);
        assert_eq!(&t.chunks[..3], &[[0, 64, 0, 0], [64, 1, 0, 1], [65, 5, 2, 0]]);
        assert_eq!(t.docs, [[0, 2], [2, 0], [2, 1], [3, 0]]);
        assert_eq!((t.start[64], t.start[65], t.start[69]), (0, 65, 65));
        assert_eq!(t.chunks.len(), 8);
    }

    #[test]
    fn equal_tokens_keep_row_order() {
        assert_eq!(rows_by_token(&[5, 2, 5, 0, 2]), [3, 1, 4, 0, 2]);
    }
}
