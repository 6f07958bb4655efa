//! Which stored row each sample is.

use ceteris_samplers::SampleId;

use crate::source::SourceError;

/// Sample ids to stored rows.
#[derive(Debug)]
pub(super) enum Rows {
    All(u64),
    Narrow(Vec<u32>),
    Wide(Vec<u64>),
}

impl Rows {
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::All(n) => *n,
            Self::Narrow(rows) => rows.len() as u64,
            Self::Wide(rows) => rows.len() as u64,
        }
    }

    #[inline]
    pub(super) fn get(&self, id: SampleId) -> Option<u64> {
        match self {
            Self::All(n) => (id < *n).then_some(id),
            Self::Narrow(rows) => rows.get(usize::try_from(id).ok()?).map(|&r| u64::from(r)),
            Self::Wide(rows) => rows.get(usize::try_from(id).ok()?).copied(),
        }
    }

    /// Collects rows of a table of `n`, in the narrowest form that holds them.
    pub(super) fn collect(
        n: u64,
        rows: impl Iterator<Item = Result<u64, SourceError>>,
    ) -> Result<Self, SourceError> {
        if n <= 1 << 32 {
            rows.map(|r| r.map(|r| r as u32))
                .collect::<Result<_, _>>()
                .map(Self::Narrow)
        } else {
            rows.collect::<Result<_, _>>().map(Self::Wide)
        }
    }
}
