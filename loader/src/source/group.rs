//! Copies rows that lie anywhere, several at a time and side by side.
//!
//! A row of a shuffled order begins with three misses: of the address translation, of the cache, and of the processor's
//! prefetcher, which has nothing to follow yet and starts anew at every page. A copy of one row after the other waits for
//! each of them; four rows copied in lockstep, a cache line of each in turn, wait for four at once, and translations asked
//! for [`AHEAD`] rows earlier are there by then. Rows that follow each other gain nothing and lose nothing.
//!
//! Memory: none.

use super::int_tokens::{IntType, Stored, copy_typed};

/// Rows copied side by side. Two leave reads unused, eight are more streams than the prefetcher follows.
pub const GROUP: usize = 4;

/// How many rows before its copy a row's addresses are asked for.
pub const AHEAD: usize = 2 * GROUP;

/// Tokens of one row copied before it is the next row's turn: a cache line of the output.
const LANES: usize = 16;

/// Copies `out[i].len()` values of type `int` from `from[i]` for every `i` and tells whether all are in `0..=max`. When
/// they are not, [`super::int_tokens::first_bad`] finds which.
///
/// # Safety
/// `from[i]` must be valid for reads of `out[i].len() * int.width()` bytes and must not overlap any of `out`; all of `out`
/// must have one length.
#[inline]
pub(crate) unsafe fn copy_group(
    int: IntType,
    from: [*const u8; GROUP],
    out: [&mut [i32]; GROUP],
    max: u32,
) -> bool {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 is there; the caller's promise covers the rest.
        return unsafe { copy_avx2(int, from, out, max) };
    }
    // SAFETY: the caller's promise.
    unsafe { copy_any(int, from, out, max) }
}

/// # Safety
/// As [`copy_group`], and the machine must have AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn copy_avx2(int: IntType, from: [*const u8; GROUP], out: [&mut [i32]; GROUP], max: u32) -> bool {
    // SAFETY: the caller's promise.
    unsafe { copy_any(int, from, out, max) }
}

/// # Safety
/// As [`copy_group`].
#[inline(always)]
unsafe fn copy_any(int: IntType, from: [*const u8; GROUP], out: [&mut [i32]; GROUP], max: u32) -> bool {
    // SAFETY: the caller's promise, for each width.
    unsafe {
        match int {
            IntType::I8 => copy_lines::<i8>(from, out, max),
            IntType::U8 => copy_lines::<u8>(from, out, max),
            IntType::I16 => copy_lines::<i16>(from, out, max),
            IntType::U16 => copy_lines::<u16>(from, out, max),
            IntType::I32 => copy_lines::<i32>(from, out, max),
            IntType::U32 => copy_lines::<u32>(from, out, max),
            IntType::I64 => copy_lines::<i64>(from, out, max),
            IntType::U64 => copy_lines::<u64>(from, out, max),
        }
    }
}

/// # Safety
/// As [`copy_group`] for values of type `T`.
#[inline(always)]
unsafe fn copy_lines<T: Stored>(from: [*const u8; GROUP], out: [&mut [i32]; GROUP], max: u32) -> bool {
    let n = out[0].len();
    debug_assert!(out.iter().all(|row| row.len() == n));
    let whole = n - n % LANES;
    // The largest of each lane and the high bits of any value: one look at the end instead of a comparison each.
    let (mut largest, mut beyond) = ([0u32; LANES], [0u32; LANES]);
    let from = from.map(<*const u8>::cast::<T>);
    let to = out.map(<[i32]>::as_mut_ptr);
    for at in (0..whole).step_by(LANES) {
        for (from, to) in from.iter().zip(&to) {
            // SAFETY: `at + LANES <= whole <= n`, so both lie within the row: the caller's promise for `from`, the slice
            // for `to`. Arrays need no more alignment than is asked of them here: none.
            unsafe {
                let values = from.add(at).cast::<[T; LANES]>().read_unaligned();
                let mut line = [0i32; LANES];
                let lanes = largest
                    .iter_mut()
                    .zip(&mut beyond)
                    .zip(values.iter().zip(&mut line));
                for ((largest, beyond), (value, slot)) in lanes {
                    *largest = (*largest).max(value.low());
                    *beyond |= value.beyond();
                    *slot = value.low() as i32;
                }
                to.add(at).cast::<[i32; LANES]>().write_unaligned(line);
            }
        }
    }
    let mut good = largest.iter().all(|&low| low <= max) && beyond.iter().all(|&high| high == 0);
    for (from, to) in from.iter().zip(to) {
        // SAFETY: the rest of the row, as above; no two of `out` overlap, and no other reference to it is alive.
        unsafe {
            let rest = std::slice::from_raw_parts_mut(to.add(whole), n - whole);
            good &= copy_typed(from.add(whole), rest, max);
        }
    }
    good
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of `n` values of `width` bytes at odd addresses, copied in a group and one by one.
    fn both<T: Stored>(int: IntType, rows: &[Vec<T>; GROUP], bytes: fn(&T) -> Vec<u8>, max: u32) -> bool {
        let n = rows[0].len();
        let stored: Vec<Vec<u8>> = rows
            .iter()
            .map(|row| std::iter::once(0).chain(row.iter().flat_map(bytes)).collect())
            .collect();
        let from = std::array::from_fn(|row| stored[row][1..].as_ptr());
        let mut grouped = vec![-7i32; GROUP * n + 1];
        let mut portable = grouped.clone();
        let mut single = grouped.clone();
        fn split(all: &mut [i32], n: usize) -> [&mut [i32]; GROUP] {
            let mut rest = all;
            std::array::from_fn(|_| rest.split_off_mut(..n).unwrap())
        }
        // SAFETY: each row of `stored` holds `n` values from its second byte on, and the outputs are apart.
        unsafe {
            let good = copy_group(int, from, split(&mut grouped, n), max);
            assert_eq!(good, copy_any(int, from, split(&mut portable, n), max));
            let mut each = true;
            for (row, out) in split(&mut single, n).into_iter().enumerate() {
                each &= super::super::int_tokens::copy_tokens(int, from[row], out, max);
            }
            assert_eq!(good, each, "{int} of {n}");
            assert_eq!(grouped, single, "{int} of {n}");
            assert_eq!(grouped, portable, "{int} of {n}");
            // Nothing is written behind the last row.
            assert_eq!(grouped[GROUP * n], -7);
            good
        }
    }

    macro_rules! every_width {
        ($($t:ty => $int:expr),*) => {$(
            for n in [0usize, 1, 15, 16, 17, 32, 100] {
                let rows: [Vec<$t>; GROUP] =
                    std::array::from_fn(|row| (0..n).map(|i| ((row * 31 + i * 7) % 100) as $t).collect());
                assert!(both($int, &rows, |v| v.to_le_bytes().to_vec(), i32::MAX as u32));
                if n == 0 {
                    continue;
                }
                // A value too large, or of the type's extremes, in any row, in the lockstep part and behind it.
                for row in 0..GROUP {
                    for at in [0, n / 2, n - 1] {
                        for (value, max) in [(101 as $t, 100), (<$t>::MIN, i32::MAX as u32), (<$t>::MAX, i32::MAX as u32)] {
                            let mut rows = rows.clone();
                            rows[row][at] = value;
                            let fits = (0..=i128::from(max)).contains(&(value as i128));
                            assert_eq!(both($int, &rows, |v| v.to_le_bytes().to_vec(), max), fits);
                        }
                    }
                }
            }
        )*};
    }

    #[test]
    fn a_group_is_what_its_rows_are_one_by_one() {
        every_width!(i8 => IntType::I8, u8 => IntType::U8, i16 => IntType::I16, u16 => IntType::U16,
            i32 => IntType::I32, u32 => IntType::U32, i64 => IntType::I64, u64 => IntType::U64);
    }
}
