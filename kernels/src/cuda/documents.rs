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

/// Row numbers sorted by token, equal tokens in ascending row order: the order of the embedding gradient's sums. A radix
/// sort: a micro-batch of 65,536 tokens is sorted between two steps.
pub(super) fn rows_by_token(tokens: &[i32]) -> Vec<i32> {
    const BITS: u32 = 11;
    const PLACES: usize = 1 << BITS;
    let largest = tokens.iter().copied().max().unwrap_or(0).max(0) as u32;
    let mut rows: Vec<i32> = (0..tokens.len() as i32).collect();
    let mut next = vec![0; rows.len()];
    let mut shift = 0;
    while shift < u32::BITS && largest >> shift > 0 {
        let digit = |row: i32| (tokens[row as usize] as u32 >> shift) as usize % PLACES;
        let mut places = [0usize; PLACES];
        rows.iter().for_each(|&r| places[digit(r)] += 1);
        let mut first = 0;
        for place in &mut places {
            first += std::mem::replace(place, first);
        }
        for &row in &rows {
            let place = &mut places[digit(row)];
            next[*place] = row;
            *place += 1;
        }
        std::mem::swap(&mut rows, &mut next);
        shift += BITS;
    }
    rows
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
        assert_eq!(rows_by_token(&[0, 0]), [0, 1]);
        assert!(rows_by_token(&[]).is_empty());
        // More digits than one.
        let tokens: Vec<i32> = (0..5000i64)
            .map(|i| ((i * 7919 * 131) % 128_256) as i32)
            .collect();
        let mut sorted: Vec<i32> = (0..5000).collect();
        sorted.sort_by_key(|&r| (tokens[r as usize], r));
        assert_eq!(rows_by_token(&tokens), sorted);
    }
}
