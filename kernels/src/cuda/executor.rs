//! The executor: memory, lowered sections, graphs, data in and out.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use cudarc::driver::{result, sys};

use super::call::{Modules, Program};
use super::device::{Block, Device, Timer};
use super::documents::{DocumentTables, rows_by_token};
use super::error::{CudaError, Doing};
use super::lower::{ALIGN, DocumentAddresses, Lowering, Places};
use super::product::{AlgorithmRecord, Products};
use super::{Precision, Source};
use crate::arena::{Layout, Storage};
use crate::backend::{ExecError, Executor, Memory, OpTime};
use crate::ops::Op;
use crate::plan::{BufferId, Plan, Role, Section};

/// One section, lowered.
#[derive(Debug)]
struct Lowered {
    program: Program,
    /// Calls of each operator.
    ranges: Vec<Range<usize>>,
    graph: Option<Graph>,
    ran: bool,
}

/// An instantiated graph.
#[derive(Debug)]
struct Graph(sys::CUgraphExec);

// SAFETY: a graph may be launched from any thread while its context is current.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: instantiated by `capture`, destroyed once.
        let _ = unsafe { result::graph::exec_destroy(self.0) };
    }
}

/// Walks a plan on one device.
#[derive(Debug)]
pub struct CudaExecutor {
    // Dropped first to last: graphs and programs before the modules and memory they refer to.
    sections: Vec<Lowered>,
    products: Products,
    modules: Modules,
    blocks: [Block; 4],
    places: Places,
    plan: Plan,
    precision: Precision,
    memory: Memory,
    /// Weights whose bf16 copy is older than the weight.
    stale: BTreeSet<BufferId>,
    algorithms: AlgorithmRecord,
    device: Device,
}

/// Bytes of the tables that belong to ids.
struct TableSizes {
    documents: BTreeSet<BufferId>,
    tokens: BTreeSet<BufferId>,
    copies: BTreeSet<BufferId>,
}

fn tables(plan: &Plan, precision: Precision) -> TableSizes {
    let mut t = TableSizes {
        documents: BTreeSet::new(),
        tokens: BTreeSet::new(),
        copies: BTreeSet::new(),
    };
    for op in Section::ALL.iter().flat_map(|&s| plan.ops(s)) {
        match op {
            Op::ShortConv(o) => _ = t.documents.insert(o.documents),
            Op::ShortConvBackward(o) => _ = t.documents.insert(o.documents),
            Op::DeltaRule(o) => _ = t.documents.insert(o.documents),
            Op::DeltaRuleBackward(o) => _ = t.documents.insert(o.documents),
            Op::EmbeddingBackward(o) => _ = t.tokens.insert(o.tokens),
            Op::Linear(o) => _ = t.copies.insert(o.weight),
            Op::LinearBackwardInput(o) => _ = t.copies.insert(o.weight),
            Op::LinearCrossEntropy(o) => _ = t.copies.insert(o.weight),
            _ => {}
        }
    }
    if precision == Precision::Fp32 {
        t.copies.clear();
    }
    t
}

impl CudaExecutor {
    /// Plans memory, compiles kernels (cached), chooses products' algorithms: from `algorithms` where it has them for
    /// this device and library, else by measurement.
    ///
    /// # Errors
    /// [`CudaError`]: missing libraries, sizes the kernels do not cover (with the allowed values), too little memory.
    pub fn new(
        plan: Plan,
        precision: Precision,
        device: Device,
        mut algorithms: AlgorithmRecord,
    ) -> Result<Self, CudaError> {
        device.bind()?;
        let element = |role: Role| precision.bytes(role) as usize;
        let layout = Layout::new(
            &plan,
            Storage {
                element: &element,
                align: ALIGN as usize,
            },
        );
        let persistent = Block::zeroed(&device, layout.persistent as u64)?;
        let arena = Block::zeroed(&device, layout.arena as u64)?;
        let sizes = tables(&plan, precision);
        let (places, side) = place(&plan, &layout, &sizes, &persistent, &arena, &device)?;
        let mut products = Products::new(&device)?;
        let mut modules = Modules::new(&device);

        let mut lowering = Lowering::new(&plan, precision, &places, &mut modules, &mut products);
        let mut lists = Vec::new();
        for section in Section::ALL {
            let mut ranges = Vec::new();
            for op in plan.ops(section) {
                let first = lowering.calls.len();
                lowering.lower(op)?;
                ranges.push(first..lowering.calls.len());
            }
            lists.push((std::mem::take(&mut lowering.calls), ranges));
        }
        let (operands, scratch_bytes) = (std::mem::take(&mut lowering.operands), lowering.scratch);
        let scratch = Block::zeroed(&device, scratch_bytes)?;
        products.choose(&operands, scratch.pointer(), &device, &mut algorithms)?;
        device.synchronize()?;
        // Measuring wrote into the operands' buffers.
        persistent.fill(0)?;
        arena.fill(0)?;

        let sections = lists
            .into_iter()
            .map(|(calls, ranges)| Lowered {
                program: Program::new(calls, scratch.pointer()),
                ranges,
                graph: None,
                ran: false,
            })
            .collect();
        let memory = Memory {
            persistent: (persistent.bytes() + side.bytes()) as usize,
            arena: (arena.bytes() + scratch.bytes()) as usize,
            arena_without_reuse: layout.arena_without_reuse,
        };
        let stale = sizes.copies;
        let blocks = [persistent, arena, side, scratch];
        let mut executor = CudaExecutor {
            sections,
            products,
            modules,
            blocks,
            places,
            plan,
            precision,
            memory,
            stale,
            algorithms,
            device,
        };
        // Until the host says otherwise every sequence is one document.
        let unpacked = executor.plan.geometry.unpacked_cu_seqlens();
        for id in sizes.documents {
            executor.put_ids(id, &unpacked)?;
        }
        Ok(executor)
    }

    /// The products' algorithms, to be stored with a run and given to the executor that continues it.
    pub fn algorithms(&self) -> &AlgorithmRecord {
        &self.algorithms
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    fn address(&self, id: BufferId, offset: usize) -> u64 {
        let role = self.plan.buffer(id).role;
        self.places.buffers[id.index()] + offset as u64 * self.precision.bytes(role)
    }

    fn check(&self, id: BufferId, offset: usize, count: usize, moves: &'static str) -> Result<(), ExecError> {
        let b = self.plan.buffer(id);
        if b.role == Role::Ids {
            return Err(ExecError::Kind {
                buffer: b.name.clone(),
                holds: "ids",
                moves,
            });
        }
        if offset.checked_add(count).is_none_or(|end| end > b.len()) {
            return Err(ExecError::Range {
                buffer: b.name.clone(),
                len: b.len(),
                offset,
                count,
            });
        }
        if !b.role.persistent() && !b.keep {
            return Err(ExecError::NotKept {
                buffer: b.name.clone(),
            });
        }
        Ok(())
    }

    /// Brings the bf16 copies of weights written by the host up to date.
    fn refresh_copies(&mut self) -> Result<(), CudaError> {
        if self.stale.is_empty() {
            return Ok(());
        }
        let kernel = self
            .modules
            .kernel(Source::Reduce, &self.precision.defines(), "copy_bf16", 0)?;
        let mut calls = Vec::new();
        for id in std::mem::take(&mut self.stale) {
            let n = self.plan.buffer(id).len() as u64;
            if let Some(&copy) = self.places.copies.get(&id) {
                calls.push(super::call::copy_bf16(
                    kernel,
                    self.places.buffers[id.index()],
                    copy,
                    n,
                ));
            }
        }
        let mut program = Program::new(calls, 0);
        program.issue(0..program.len(), self.device.stream(), &self.products)?;
        // The program's argument cells are read when a launch is made, not later: it may go now.
        Ok(())
    }

    fn start(&mut self, section: Section) -> Result<(), CudaError> {
        self.device.bind()?;
        self.refresh_copies()?;
        let stream = self.device.stream();
        let lowered = &mut self.sections[section as usize];
        if let Some(graph) = &lowered.graph {
            // SAFETY: the graph was captured from this program, whose memory and modules are alive.
            return unsafe { result::graph::launch(graph.0, stream) }.doing(|| "launching a graph".into());
        }
        if lowered.ran && lowered.program.len() > 0 {
            lowered.graph = Some(capture(&mut lowered.program, stream, &self.products)?);
            return self.start(section);
        }
        // The first run goes call by call, so that libraries set themselves up outside of a capture.
        lowered.ran = true;
        lowered
            .program
            .issue(0..lowered.program.len(), stream, &self.products)
    }

    fn times(&mut self, section: Section) -> Result<Vec<OpTime>, CudaError> {
        self.device.bind()?;
        self.refresh_copies()?;
        let stream = self.device.stream();
        let lowered = &mut self.sections[section as usize];
        let mut timers = Vec::new();
        for range in lowered.ranges.clone() {
            let timer = Timer::new()?;
            timer.start(stream)?;
            lowered.program.issue(range, stream, &self.products)?;
            timer.stop(stream)?;
            timers.push(timer);
        }
        let mut times = Vec::new();
        for (index, timer) in timers.iter().enumerate() {
            let time = Duration::from_secs_f64(f64::from(timer.milliseconds()?) / 1e3);
            times.push(OpTime { section, index, time });
        }
        Ok(times)
    }

    fn put_ids(&mut self, id: BufferId, values: &[i32]) -> Result<(), CudaError> {
        self.device.bind()?;
        let at = self.places.buffers[id.index()];
        self.device.upload(at, values, "ids")?;
        if let Some(d) = self.places.documents.get(&id).copied() {
            let t = DocumentTables::new(values, self.plan.geometry.max_chunks());
            self.device.upload(d.chunks, &t.chunks, "chunks")?;
            self.device.upload(d.docs, &t.docs, "documents")?;
            self.device.upload(d.counts, &t.counts, "counts")?;
            self.device.upload(d.start, &t.start, "document starts")?;
        }
        if let Some(&order) = self.places.row_orders.get(&id) {
            self.device
                .upload(order, &rows_by_token(values), "the token order")?;
        }
        Ok(())
    }
}

/// Places buffers in their blocks and the tables that belong to ids in a block of their own.
fn place(
    plan: &Plan,
    layout: &Layout,
    sizes: &TableSizes,
    persistent: &Block,
    arena: &Block,
    device: &Device,
) -> Result<(Places, Block), CudaError> {
    let buffers = plan
        .buffers
        .iter()
        .zip(&layout.offsets)
        .map(|(b, &o)| if b.role.persistent() { persistent.pointer() } else { arena.pointer() } + o as u64)
        .collect();
    let g = plan.geometry;
    let mut total = 0u64;
    let mut take = |bytes: u64| {
        let at = total;
        total += bytes.next_multiple_of(ALIGN);
        at
    };
    let mut documents = BTreeMap::new();
    for &id in &sizes.documents {
        let d = DocumentAddresses {
            chunks: take(16 * g.max_chunks() as u64),
            docs: take(8 * g.max_documents as u64),
            counts: take(8),
            start: take(4 * g.rows() as u64),
        };
        documents.insert(id, d);
    }
    let mut row_orders: BTreeMap<_, _> = sizes
        .tokens
        .iter()
        .map(|&id| (id, take(4 * plan.buffer(id).len() as u64)))
        .collect();
    let mut copies: BTreeMap<_, _> = sizes
        .copies
        .iter()
        .map(|&id| (id, take(2 * plan.buffer(id).len() as u64)))
        .collect();
    let side = Block::zeroed(device, total)?;
    let base = side.pointer();
    for d in documents.values_mut() {
        d.chunks += base;
        d.docs += base;
        d.counts += base;
        d.start += base;
    }
    row_orders.values_mut().for_each(|p| *p += base);
    copies.values_mut().for_each(|p| *p += base);
    Ok((
        Places {
            buffers,
            copies,
            documents,
            row_orders,
        },
        side,
    ))
}

/// Captures a program into a graph.
fn capture(program: &mut Program, stream: sys::CUstream, products: &Products) -> Result<Graph, CudaError> {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: a live stream of the current context; the capture is ended below on every path.
    unsafe { result::stream::begin_capture(stream, mode) }.doing(|| "beginning a capture".into())?;
    let issued = program.issue(0..program.len(), stream, products);
    // SAFETY: ends the capture begun above.
    let graph = unsafe { result::stream::end_capture(stream) }.doing(|| "ending a capture".into());
    issued?;
    let graph = graph?;
    // SAFETY: a complete graph; the template is destroyed after instantiation, the instance lives on.
    unsafe {
        let exec = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
        let _ = result::graph::destroy(graph);
        exec.map(Graph).doing(|| "instantiating a graph".into())
    }
}

impl Executor for CudaExecutor {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn write_ids(&mut self, buffer: BufferId, values: &[i32]) -> Result<(), ExecError> {
        crate::ids::check(&self.plan, buffer, values)?;
        Ok(self.put_ids(buffer, values)?)
    }

    fn write_f32(&mut self, buffer: BufferId, offset: usize, values: &[f32]) -> Result<(), ExecError> {
        self.check(buffer, offset, values.len(), "floats")?;
        let at = self.address(buffer, offset);
        self.device.bind()?;
        match self.precision.bytes(self.plan.buffer(buffer).role) {
            2 => {
                let v: Vec<half::bf16> = values.iter().map(|&x| half::bf16::from_f32(x)).collect();
                self.device.upload(at, &v, "values")?;
            }
            8 => {
                let v: Vec<f64> = values.iter().map(|&x| f64::from(x)).collect();
                self.device.upload(at, &v, "values")?;
            }
            _ => self.device.upload(at, values, "values")?,
        }
        if self.places.copies.contains_key(&buffer) {
            self.stale.insert(buffer);
        }
        Ok(())
    }

    fn write_f64(&mut self, buffer: BufferId, offset: usize, values: &[f64]) -> Result<(), ExecError> {
        if self.precision.bytes(self.plan.buffer(buffer).role) != 8 {
            let v: Vec<f32> = values.iter().map(|&x| x as f32).collect();
            return self.write_f32(buffer, offset, &v);
        }
        self.check(buffer, offset, values.len(), "floats")?;
        let at = self.address(buffer, offset);
        self.device.bind()?;
        Ok(self.device.upload(at, values, "values")?)
    }

    fn read_f32(&mut self, buffer: BufferId, offset: usize, out: &mut [f32]) -> Result<(), ExecError> {
        self.check(buffer, offset, out.len(), "floats")?;
        let at = self.address(buffer, offset);
        self.device.bind()?;
        match self.precision.bytes(self.plan.buffer(buffer).role) {
            2 => {
                let mut v = vec![half::bf16::ZERO; out.len()];
                self.device.download(&mut v, at, "values")?;
                out.iter_mut().zip(v).for_each(|(o, x)| *o = x.to_f32());
            }
            8 => {
                let mut v = vec![0f64; out.len()];
                self.device.download(&mut v, at, "values")?;
                out.iter_mut().zip(v).for_each(|(o, x)| *o = x as f32);
            }
            _ => self.device.download(out, at, "values")?,
        }
        Ok(())
    }

    fn read_f64(&mut self, buffer: BufferId, offset: usize, out: &mut [f64]) -> Result<(), ExecError> {
        if self.precision.bytes(self.plan.buffer(buffer).role) != 8 {
            let mut v = vec![0f32; out.len()];
            self.read_f32(buffer, offset, &mut v)?;
            out.iter_mut().zip(v).for_each(|(o, x)| *o = f64::from(x));
            return Ok(());
        }
        self.check(buffer, offset, out.len(), "floats")?;
        let at = self.address(buffer, offset);
        self.device.bind()?;
        Ok(self.device.download(out, at, "values")?)
    }

    fn run(&mut self, section: Section) -> Result<(), ExecError> {
        // Reads go through the same stream, so returning before the device is done is as good as after.
        Ok(self.start(section)?)
    }

    fn profile(&mut self, section: Section) -> Result<Vec<OpTime>, ExecError> {
        Ok(self.times(section)?)
    }

    fn memory(&self) -> Memory {
        self.memory
    }

    fn poison(&mut self) {
        let bound = self.device.bind().and_then(|()| self.device.synchronize());
        // All bits set is NaN in bf16 and fp32. Scratch memory is poisoned too. A device that fails here fails again,
        // with a message, at the next run.
        let _ = bound
            .and_then(|()| self.blocks[1].fill(0xff))
            .and_then(|()| self.blocks[3].fill(0xff));
    }
}
