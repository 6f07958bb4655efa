//! Loops of the softmax over panels of logits, `[entries, rows]` with as many rows as a register tile is wide.

use super::real::Real;

/// Runs `$f` with the panel's width as a constant, so that loops over it become vector code.
macro_rules! with_width {
    ($nr:expr, $f:ident($($argument:expr),*)) => {
        match $nr {
            2 => $f::<T, 2>($($argument),*),
            4 => $f::<T, 4>($($argument),*),
            8 => $f::<T, 8>($($argument),*),
            16 => $f::<T, 16>($($argument),*),
            other => unreachable!("no instruction set has tiles of {other} values"),
        }
    };
}

/// A panel's logits become exponentials relative to the maximum of their row, which are summed.
#[inline(always)]
pub fn exponentials<T: Real>(nr: usize, panel: &mut [T], maxima: &mut [T], sums: &mut [T]) {
    #[inline(always)]
    fn fixed<T: Real, const P: usize>(panel: &mut [T], maxima: &mut [T], sums: &mut [T]) {
        let entries = panel.as_chunks_mut::<P>().0;
        let (mut max, mut sum) = (entries[0], [T::ZERO; P]);
        for entry in &entries[1..] {
            for r in 0..P {
                max[r] = entry[r].max(max[r]);
            }
        }
        for entry in entries {
            for r in 0..P {
                entry[r] = (entry[r] - max[r]).exp();
                sum[r] += entry[r];
            }
        }
        maxima.copy_from_slice(&max);
        sums.copy_from_slice(&sum);
    }
    with_width!(nr, fixed(panel, maxima, sums));
}

/// A panel's values times a factor for each row.
#[inline(always)]
pub fn scale_rows<T: Real>(nr: usize, panel: &mut [T], relative: &[T], factor: &[T]) {
    #[inline(always)]
    fn fixed<T: Real, const P: usize>(panel: &mut [T], relative: &[T], factor: &[T]) {
        let mut by = [T::ZERO; P];
        for r in 0..P {
            by[r] = relative[r] * factor[r];
        }
        for entry in panel.as_chunks_mut::<P>().0 {
            for r in 0..P {
                entry[r] *= by[r];
            }
        }
    }
    with_width!(nr, fixed(panel, relative, factor));
}

/// Over all blocks: the maximum of each row (`max`), each block's maximum relative to it (`exp(m_b - m)`, over
/// `maxima`), and the sum of exponentials relative to it (`totals`).
#[inline(always)]
pub fn combine<T: Real>(maxima: &mut [T], sums: &[T], max: &mut [T], totals: &mut [f64]) {
    let rows = max.len();
    max.copy_from_slice(&maxima[..rows]);
    for block in maxima.chunks_exact(rows) {
        max.iter_mut().zip(block).for_each(|(max, &x)| *max = x.max(*max));
    }
    totals.fill(0.0);
    for (block, sums) in maxima.chunks_exact_mut(rows).zip(sums.chunks_exact(rows)) {
        for (((e, &sum), &max), total) in block.iter_mut().zip(sums).zip(&*max).zip(totals.iter_mut()) {
            *e = (*e - max).exp();
            *total += sum.f64() * e.f64();
        }
    }
}
