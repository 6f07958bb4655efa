//! Matrix products through cuBLASLt: descriptors made once per shape, the algorithm chosen once by measurement and
//! recorded, so that another process that is given the record gets the same bits.
//!
//! cuBLASLt is column-major. A row-major matrix `[r, c]` with row stride `ld` is a column-major `c × r` one with leading
//! dimension `ld`; all three products of a linear layer are one call each in that view.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;

use cudarc::cublaslt::{result, sys};
use cudarc::driver::sys::CUstream;

use super::algorithm_cache;
use super::batch_invariant::{self, Probe};
use super::call::Address;
use super::device::{Block, Device, Timer};
use super::error::{CudaError, Doing};

/// Bytes of workspace every product may use.
pub(super) const WORKSPACE: u64 = 64 << 20;
/// Algorithms of the heuristic that are measured.
const CANDIDATES: usize = 16;
/// Times each is measured, in turns with the others.
const ROUNDS: usize = 3;
/// Work of one measurement.
const BATCH_MILLISECONDS: f32 = 6.0;

/// Element type of a product's operands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Type {
    Bf16,
    F32,
}

impl Type {
    fn bytes(self) -> u64 {
        match self {
            Type::Bf16 => 2,
            Type::F32 => 4,
        }
    }

    fn cuda(self) -> sys::cudaDataType {
        match self {
            Type::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
            Type::F32 => sys::cudaDataType_t::CUDA_R_32F,
        }
    }
}

/// `D (m × n) = op(A) op(B) + beta D`, column-major, fp32 accumulation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Shape {
    pub(super) m: u64,
    pub(super) n: u64,
    pub(super) k: u64,
    pub(super) transpose_a: bool,
    pub(super) transpose_b: bool,
    pub(super) lda: u64,
    pub(super) ldb: u64,
    pub(super) ldd: u64,
    pub(super) input: Type,
    pub(super) output: Type,
    pub(super) accumulate: bool,
    /// Bytes that every operand's address is a multiple of, at most 256: wider accesses are not offered past it.
    pub(super) align: u32,
}

impl Shape {
    /// Bytes of an element of the output.
    pub(super) fn output_bytes(&self) -> u64 {
        self.output.bytes()
    }

    /// Bytes of an element of an operand.
    pub(super) fn input_bytes(&self) -> u64 {
        self.input.bytes()
    }
}

/// Operands of one product.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub(super) a: Address,
    pub(super) b: Address,
    pub(super) d: Address,
}

/// Descriptors of one shape.
#[derive(Debug)]
pub(super) struct Prepared {
    shape: Shape,
    /// Computed by one algorithm whatever the number of rows, see [`batch_invariant`].
    batch_invariant: bool,
    description: sys::cublasLtMatmulDesc_t,
    a: sys::cublasLtMatrixLayout_t,
    b: sys::cublasLtMatrixLayout_t,
    d: sys::cublasLtMatrixLayout_t,
    algorithm: Option<sys::cublasLtMatmulAlgo_t>,
}

impl Drop for Prepared {
    fn drop(&mut self) {
        // SAFETY: made by `describe`, destroyed once.
        unsafe {
            let _ = result::destroy_matmul_desc(self.description);
            let _ = result::destroy_matrix_layout(self.a);
            let _ = result::destroy_matrix_layout(self.b);
            let _ = result::destroy_matrix_layout(self.d);
        }
    }
}

/// What the library may offer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    /// Most bytes of workspace.
    pub(super) workspace: u64,
    /// Whether the sum over k may be cut into parts that are added in a second pass.
    pub(super) split_k: bool,
}

#[derive(Debug)]
struct Library {
    handle: sys::cublasLtHandle_t,
    workspace: Block,
}

/// The products of a plan.
#[derive(Debug)]
pub(super) struct Products {
    /// Absent where a plan is only looked through for the kernels it needs.
    library: Option<Library>,
    prepared: Vec<Prepared>,
    by_shape: BTreeMap<(bool, Shape), usize>,
}

// SAFETY: cuBLASLt handles and descriptors may be used from any thread, one at a time, as `&mut` access ensures.
unsafe impl Send for Products {}

/// Chosen algorithms: key of the shape → the library's 64-byte description in hex. Valid for the library version and
/// device it was made with, which its first entry names.
pub type AlgorithmRecord = BTreeMap<String, String>;

impl Products {
    pub(super) fn new(device: &Device) -> Result<Self, CudaError> {
        // SAFETY: only looks for the library.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoCublasLt);
        }
        let handle = result::create_handle().doing(|| "making a handle".into())?;
        let workspace = Block::zeroed(device, WORKSPACE)?;
        let mut products = Self::listing();
        products.library = Some(Library { handle, workspace });
        Ok(products)
    }

    /// Counts shapes and describes nothing: needs neither library nor device.
    pub(super) fn listing() -> Self {
        Products {
            library: None,
            prepared: Vec::new(),
            by_shape: BTreeMap::new(),
        }
    }

    fn library(&self) -> Result<&Library, CudaError> {
        self.library.as_ref().ok_or(CudaError::NoCublasLt)
    }

    /// Descriptors for a shape; the same shape gives the same index.
    pub(super) fn prepare(&mut self, shape: Shape) -> Result<usize, CudaError> {
        self.prepare_as(false, shape)
    }

    /// As [`prepare`](Self::prepare), with an algorithm that does not depend on the number of rows, `shape.n`.
    pub(super) fn prepare_batch_invariant(&mut self, shape: Shape) -> Result<usize, CudaError> {
        self.prepare_as(true, shape)
    }

    fn prepare_as(&mut self, batch_invariant: bool, shape: Shape) -> Result<usize, CudaError> {
        if let Some(&index) = self.by_shape.get(&(batch_invariant, shape)) {
            return Ok(index);
        }
        let index = self.by_shape.len();
        if self.library.is_some() {
            let mut prepared = Self::describe(shape)?;
            prepared.batch_invariant = batch_invariant;
            self.prepared.push(prepared);
        }
        self.by_shape.insert((batch_invariant, shape), index);
        Ok(index)
    }

    /// The batch-invariant products, each once: with the number of rows that stands for all.
    pub(super) fn batch_invariant_shapes(&self) -> BTreeSet<Shape> {
        let pinned = self.by_shape.keys().filter(|(pinned, _)| *pinned);
        pinned
            .map(|(_, shape)| batch_invariant::reference(*shape))
            .collect()
    }

    /// Descriptors of a shape.
    pub(super) fn describe(shape: Shape) -> Result<Prepared, CudaError> {
        let doing = || format!("describing {shape:?}");
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let description = result::create_matmul_desc(compute, Type::F32.cuda()).doing(doing)?;
        let set = |attribute, transpose: bool| {
            let op: i32 = i32::from(transpose);
            // SAFETY: a live descriptor and a value of the size the attribute has (cublasOperation_t).
            unsafe {
                result::set_matmul_desc_attribute(
                    description,
                    attribute,
                    std::ptr::from_ref(&op).cast(),
                    size_of::<i32>(),
                )
            }
            .doing(doing)
        };
        set(
            sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA,
            shape.transpose_a,
        )?;
        set(
            sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSB,
            shape.transpose_b,
        )?;
        let layout = |rows: u64, columns: u64, ld: u64, kind: Type| {
            result::create_matrix_layout(kind.cuda(), rows, columns, ld as i64).doing(doing)
        };
        let (ra, ca) = if shape.transpose_a {
            (shape.k, shape.m)
        } else {
            (shape.m, shape.k)
        };
        let (rb, cb) = if shape.transpose_b {
            (shape.n, shape.k)
        } else {
            (shape.k, shape.n)
        };
        Ok(Prepared {
            shape,
            batch_invariant: false,
            description,
            a: layout(ra, ca, shape.lda, shape.input)?,
            b: layout(rb, cb, shape.ldb, shape.input)?,
            d: layout(shape.m, shape.n, shape.ldd, shape.output)?,
            algorithm: None,
        })
    }

    /// The first `CANDIDATES` algorithms the library offers; none where it has none.
    pub(super) fn candidates(
        &self,
        p: &Prepared,
        offer: Offer,
    ) -> Result<Vec<sys::cublasLtMatmulAlgo_t>, CudaError> {
        let doing = || format!("finding an algorithm for {:?}", p.shape);
        let preference = result::create_matmul_pref().doing(doing)?;
        let library = self.library()?;
        let bytes = library.workspace.bytes().min(offer.workspace) as usize;
        type Preference = sys::cublasLtMatmulPreferenceAttributes_t;
        let mut found: [std::mem::MaybeUninit<sys::cublasLtMatmulHeuristicResult_t>; CANDIDATES] =
            [const { std::mem::MaybeUninit::uninit() }; CANDIDATES];
        let mut count = 0;
        // SAFETY: live descriptors; the array has as many entries as are asked for; the first `count` are written.
        let list = unsafe {
            result::set_matmul_pref_attribute(
                preference,
                Preference::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                std::ptr::from_ref(&bytes).cast(),
                size_of::<usize>(),
            )
            .doing(doing)?;
            for operand in [
                Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                Preference::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
            ] {
                let align = std::ptr::from_ref(&p.shape.align).cast();
                result::set_matmul_pref_attribute(preference, operand, align, size_of::<u32>())
                    .doing(doing)?;
            }
            if !offer.split_k {
                let none = 0u32;
                result::set_matmul_pref_attribute(
                    preference,
                    Preference::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                    std::ptr::from_ref(&none).cast(),
                    size_of::<u32>(),
                )
                .doing(doing)?;
            }
            let status = sys::cublasLtMatmulAlgoGetHeuristic(
                library.handle,
                p.description,
                p.a,
                p.b,
                p.d,
                p.d,
                preference,
                CANDIDATES as i32,
                found.as_mut_ptr().cast(),
                &mut count,
            );
            let _ = result::destroy_matmul_pref(preference);
            if status == sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED {
                return Ok(Vec::new());
            }
            status.result().doing(doing)?;
            found[..count.clamp(0, CANDIDATES as i32) as usize]
                .iter()
                .map(|f| f.assume_init_ref())
                .filter(|f| f.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS)
                .map(|f| f.algo)
                .collect::<Vec<_>>()
        };
        Ok(list)
    }

    /// Chooses every product's algorithm: from `record` where it has one, else by measuring the candidates on the given
    /// operands (whose output is overwritten), and adds the choice to `record`. Batch-invariant ones are not measured but
    /// checked: the first candidate that passes. Returns what a user should be told.
    pub(super) fn choose(
        &mut self,
        operands: &BTreeMap<usize, Product>,
        scratch: u64,
        probe: &Probe,
        device: &Device,
        record: &mut AlgorithmRecord,
    ) -> Result<Vec<String>, CudaError> {
        // SAFETY: reads a constant of the library.
        let version = unsafe { sys::cublasLtGetVersion() };
        let library = format!("cuBLASLt {version} on {}", device.name());
        let notes = adopt(record, &library).into_iter().collect();
        let known = algorithm_cache::load(&library);
        for index in 0..self.prepared.len() {
            let shape = self.prepared[index].shape;
            let pinned = self.prepared[index].batch_invariant;
            let key = if pinned {
                batch_invariant::key(shape)
            } else {
                format!("{shape:?}")
            };
            let found = record.get(&key).or_else(|| known.get(&key));
            let chosen = match found.and_then(|hex| parse(hex)) {
                Some(algorithm) => algorithm,
                None if pinned => batch_invariant::choose(self, shape, probe, device)?.0,
                None => {
                    let Some(product) = operands.get(&index) else {
                        continue;
                    };
                    self.measure(index, product, scratch, device)?
                }
            };
            record.insert(key, format_algorithm(&chosen));
            self.prepared[index].algorithm = Some(chosen);
        }
        algorithm_cache::save(&library, known, record);
        Ok(notes)
    }

    /// The fastest of the candidates under sustained load: a card at its power limit runs at other clocks than one that
    /// was idle, and ranks them differently.
    fn measure(
        &self,
        index: usize,
        product: &Product,
        scratch: u64,
        device: &Device,
    ) -> Result<sys::cublasLtMatmulAlgo_t, CudaError> {
        let p = &self.prepared[index];
        let timer = Timer::new()?;
        let time = |algorithm: &sys::cublasLtMatmulAlgo_t, times: usize| -> Result<f32, CudaError> {
            timer.start(device.stream())?;
            for _ in 0..times {
                self.matmul(p, Some(algorithm), product, scratch, device.stream())?;
            }
            timer.stop(device.stream())?;
            Ok(timer.milliseconds()? / times as f32)
        };
        let mut list = Vec::new();
        let offer = Offer {
            workspace: WORKSPACE,
            split_k: true,
        };
        for algorithm in self.candidates(p, offer)? {
            if time(&algorithm, 1).is_ok() {
                list.push((algorithm, time(&algorithm, 1)?, [0f32; ROUNDS]));
            }
        }
        // What is far from the best needs no second look.
        let best = list.iter().fold(f32::INFINITY, |best, c| best.min(c.1));
        list.retain(|c| c.1 < 1.5 * best);
        let times = ((BATCH_MILLISECONDS / best.max(1e-3)) as usize).clamp(1, 200);
        for round in 0..ROUNDS {
            for (algorithm, _, measured) in &mut list {
                measured[round] = time(algorithm, times)?;
            }
        }
        let mut chosen: Option<(f32, sys::cublasLtMatmulAlgo_t)> = None;
        for (algorithm, _, mut measured) in list {
            measured.sort_by(f32::total_cmp);
            let median = measured[ROUNDS / 2];
            // A later candidate must be clearly faster: the heuristic's order decides ties.
            if chosen.is_none_or(|(t, _)| median < t * 0.995) {
                chosen = Some((median, algorithm));
            }
        }
        chosen
            .map(|(_, a)| a)
            .ok_or_else(|| CudaError::Unsupported(format!("no cuBLASLt algorithm ran for {:?}", p.shape)))
    }

    pub(super) fn matmul(
        &self,
        p: &Prepared,
        algorithm: Option<&sys::cublasLtMatmulAlgo_t>,
        product: &Product,
        scratch: u64,
        stream: CUstream,
    ) -> Result<(), CudaError> {
        let (alpha, beta) = (1.0f32, if p.shape.accumulate { 1.0f32 } else { 0.0 });
        let d = product.d.resolve(scratch);
        let library = self.library()?;
        // SAFETY: descriptors and addresses describe buffers the executor keeps alive, with the extents that
        // `prepare` was given; the workspace belongs to this stream alone.
        unsafe {
            result::matmul(
                library.handle,
                p.description,
                std::ptr::from_ref(&alpha).cast(),
                std::ptr::from_ref(&beta).cast(),
                product.a.resolve(scratch) as *const c_void,
                p.a,
                product.b.resolve(scratch) as *const c_void,
                p.b,
                d as *const c_void,
                p.d,
                d as *mut c_void,
                p.d,
                algorithm.map_or(std::ptr::null(), std::ptr::from_ref),
                library.workspace.pointer() as *mut c_void,
                library.workspace.bytes() as usize,
                stream.cast(),
            )
        }
        .doing(|| format!("{:?}", p.shape))
    }

    /// Puts a product on the stream.
    pub(super) fn issue(
        &self,
        index: usize,
        product: &Product,
        scratch: u64,
        stream: CUstream,
    ) -> Result<(), CudaError> {
        let p = &self.prepared[index];
        self.matmul(p, p.algorithm.as_ref(), product, scratch, stream)
    }
}

impl Drop for Products {
    fn drop(&mut self) {
        if let Some(library) = &self.library {
            // SAFETY: made by `new`, destroyed once.
            let _ = unsafe { result::destroy_handle(library.handle) };
        }
    }
}

/// Makes the record one of `library`: what another library or device chose does not hold and is dropped, which the user is
/// told.
fn adopt(record: &mut AlgorithmRecord, library: &str) -> Option<String> {
    let other = record.get("library").map(String::as_str);
    if other == Some(library) {
        return None;
    }
    let note = (!record.is_empty()).then(|| {
        format!(
            "the algorithms of the matrix products were chosen with {}; they do not hold for {library} and are chosen again: \
             results may differ in their last bits from what was computed before",
            other.unwrap_or("an unnamed library")
        )
    });
    record.clear();
    record.insert("library".into(), library.to_owned());
    note
}

pub(super) fn format_algorithm(a: &sys::cublasLtMatmulAlgo_t) -> String {
    a.data.iter().map(|w| format!("{w:016x}")).collect()
}

fn parse(hex: &str) -> Option<sys::cublasLtMatmulAlgo_t> {
    let mut data = [0u64; 8];
    if hex.len() != 128 || !hex.is_ascii() {
        return None;
    }
    for (i, word) in data.iter_mut().enumerate() {
        *word = u64::from_str_radix(&hex[i * 16..i * 16 + 16], 16).ok()?;
    }
    Some(sys::cublasLtMatmulAlgo_t { data })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_another_library_is_dropped_with_a_note() {
        let mut record = AlgorithmRecord::new();
        assert_eq!(adopt(&mut record, "cuBLASLt 1 on A"), None);
        record.insert("shape".into(), "00".into());
        assert_eq!(adopt(&mut record, "cuBLASLt 1 on A"), None);
        assert_eq!(record.len(), 2);
        let note = adopt(&mut record, "cuBLASLt 2 on B").unwrap();
        assert!(
            note.contains("cuBLASLt 1 on A") && note.contains("cuBLASLt 2 on B"),
            "{note}"
        );
        assert_eq!(
            record.into_iter().collect::<Vec<_>>(),
            [("library".into(), "cuBLASLt 2 on B".into())]
        );
    }

    #[test]
    fn an_algorithm_survives_the_record() {
        let a = sys::cublasLtMatmulAlgo_t {
            data: [0, 1, u64::MAX, 42, 5, 6, 7, 1 << 63],
        };
        assert_eq!(parse(&format_algorithm(&a)).unwrap().data, a.data);
        assert!(parse("12").is_none() && parse(&"z".repeat(128)).is_none());
    }
}
