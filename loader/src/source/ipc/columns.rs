//! Columns of an Arrow IPC schema: their types, and where a column's nodes and buffers stand in a record
//! batch.
//!
//! A record batch lists field nodes and buffers of all columns flattened in pre-order, so the place of one
//! column follows from the types before it. Layout facts: Arrow columnar format 1.5, "Recordbatch message"
//! and "Buffer listing for each layout".

use std::fmt;

use arrow_ipc::{Field, MetadataVersion, Precision, Schema, TimeUnit, Type, UnionMode};

use crate::source::int_tokens::IntType;

/// How a list column marks where each row's values lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ListKind {
    /// n + 1 offsets of 32 bits.
    List,
    /// n + 1 offsets of 64 bits.
    LargeList,
    /// Every row has this many values.
    FixedSizeList(u32),
    /// n offsets and n sizes of 32 bits.
    ListView,
    /// n offsets and n sizes of 64 bits.
    LargeListView,
}

/// Type of a column that can hold token rows: a list of integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TokenType {
    pub(crate) list: ListKind,
    pub(crate) int: IntType,
}

impl fmt::Display for TokenType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.list {
            ListKind::List => write!(f, "list<{}>", self.int),
            ListKind::LargeList => write!(f, "large_list<{}>", self.int),
            ListKind::FixedSizeList(n) => write!(f, "fixed_size_list<{}>[{n}]", self.int),
            ListKind::ListView => write!(f, "list_view<{}>", self.int),
            ListKind::LargeListView => write!(f, "large_list_view<{}>", self.int),
        }
    }
}

/// What a column is, as far as token reading goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ColumnKind {
    /// A list of integers.
    Tokens(TokenType),
    /// A plain integer (an indices table is one of u64).
    Int(IntType),
    /// Anything else.
    Other,
}

/// One top-level column of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) name: String,
    /// As pyarrow prints it, for example `list<item: int32>`.
    pub(crate) type_name: String,
    pub(crate) kind: ColumnKind,
    slot: Slot,
}

/// Where a column begins in the flattened lists of a record batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Slot {
    nodes: usize,
    buffers: usize,
    /// Columns of view types before it, each of which adds buffers that only the batch counts.
    variadic: usize,
}

/// The columns of a file and the totals every record batch of it must show.
#[derive(Debug, Clone)]
pub(crate) struct Columns {
    pub(crate) list: Vec<Column>,
    total: Slot,
}

impl Columns {
    /// Reads a verified schema.
    ///
    /// # Errors
    /// A sentence naming what the schema holds that cannot be read.
    pub(crate) fn of(schema: Schema<'_>, version: MetadataVersion) -> Result<Self, String> {
        let mut at = Slot::default();
        let mut list = Vec::new();
        for field in schema.fields().into_iter().flatten() {
            let slot = at;
            advance(field, version, &mut at)?;
            list.push(Column {
                name: field.name().unwrap_or_default().to_owned(),
                type_name: type_name(field),
                kind: kind_of(field),
                slot,
            });
        }
        Ok(Self { list, total: at })
    }

    /// Nodes a record batch of these columns has.
    pub(crate) fn num_nodes(&self) -> usize {
        self.total.nodes
    }

    /// Buffers a record batch has, given its counts of variadic buffers; `None` when the counts do not fit.
    pub(crate) fn num_buffers(&self, variadic: &[usize]) -> Option<usize> {
        (variadic.len() == self.total.variadic)
            .then(|| {
                variadic
                    .iter()
                    .try_fold(self.total.buffers, |sum, &n| sum.checked_add(n))
            })
            .flatten()
    }

    /// First node of column `i`.
    pub(crate) fn node(&self, i: usize) -> usize {
        self.list[i].slot.nodes
    }

    /// First buffer of column `i`; `variadic` must be what [`Self::num_buffers`] accepted.
    pub(crate) fn buffer(&self, i: usize, variadic: &[usize]) -> usize {
        let slot = self.list[i].slot;
        slot.buffers + variadic[..slot.variadic].iter().sum::<usize>()
    }

    /// Index of the column called `name`; `Err` when two are.
    pub(crate) fn find(&self, name: &str) -> Result<Option<usize>, String> {
        let mut found = self
            .list
            .iter()
            .enumerate()
            .filter(|(_, c)| c.name == name)
            .map(|(i, _)| i);
        match (found.next(), found.next()) {
            (first, None) => Ok(first),
            (_, Some(_)) => Err(format!("has two columns called \"{name}\"")),
        }
    }

    /// `name: type` of every column, for messages.
    pub(crate) fn describe(&self) -> String {
        let all: Vec<String> = self
            .list
            .iter()
            .map(|c| format!("{}: {}", c.name, c.type_name))
            .collect();
        if all.is_empty() {
            "no columns".to_owned()
        } else {
            all.join(", ")
        }
    }
}

/// Moves `at` past `field`. A dictionary column's values lie elsewhere: only its integer indices count.
fn advance(field: Field<'_>, version: MetadataVersion, at: &mut Slot) -> Result<(), String> {
    at.nodes += 1;
    if field.dictionary().is_some() {
        at.buffers += 2;
        return Ok(());
    }
    at.buffers += match field.type_type() {
        Type::Null | Type::RunEndEncoded => 0,
        Type::FixedSizeList | Type::Struct_ => 1,
        Type::Int
        | Type::FloatingPoint
        | Type::Bool
        | Type::Decimal
        | Type::Date
        | Type::Time
        | Type::Timestamp
        | Type::Interval
        | Type::Duration
        | Type::FixedSizeBinary
        | Type::List
        | Type::LargeList
        | Type::Map => 2,
        Type::Utf8 | Type::Binary | Type::LargeUtf8 | Type::LargeBinary => 3,
        Type::ListView | Type::LargeListView => 3,
        Type::Utf8View | Type::BinaryView => {
            at.variadic += 1;
            2
        }
        Type::Union => {
            let dense = field
                .type_as_union()
                .is_some_and(|u| u.mode() == UnionMode::Dense);
            // Before version 5 a union also had a validity bitmap.
            1 + usize::from(dense) + usize::from(version < MetadataVersion::V5)
        }
        other => {
            return Err(format!(
                "column \"{}\" has an unknown type ({other:?})",
                field.name().unwrap_or_default()
            ));
        }
    };
    for child in field.children().into_iter().flatten() {
        advance(child, version, at)?;
    }
    Ok(())
}

fn int_of(field: Field<'_>) -> Option<IntType> {
    if field.dictionary().is_some() {
        return None;
    }
    let int = field.type_as_int()?;
    IntType::new(int.bitWidth(), int.is_signed())
}

fn kind_of(field: Field<'_>) -> ColumnKind {
    if field.dictionary().is_some() {
        return ColumnKind::Other;
    }
    if let Some(int) = int_of(field) {
        return ColumnKind::Int(int);
    }
    let list = match field.type_type() {
        Type::List => ListKind::List,
        Type::LargeList => ListKind::LargeList,
        Type::ListView => ListKind::ListView,
        Type::LargeListView => ListKind::LargeListView,
        Type::FixedSizeList => {
            let size = field.type_as_fixed_size_list().map_or(-1, |l| l.listSize());
            match u32::try_from(size) {
                Ok(size) => ListKind::FixedSizeList(size),
                Err(_) => return ColumnKind::Other,
            }
        }
        _ => return ColumnKind::Other,
    };
    match field.children() {
        Some(children) if children.len() == 1 => match int_of(children.get(0)) {
            Some(int) => ColumnKind::Tokens(TokenType { list, int }),
            None => ColumnKind::Other,
        },
        _ => ColumnKind::Other,
    }
}

/// The type as pyarrow prints it.
fn type_name(field: Field<'_>) -> String {
    let child = |i: usize| -> String {
        match field.children() {
            Some(children) if i < children.len() => {
                let child = children.get(i);
                let not_null = if child.nullable() { "" } else { " not null" };
                format!(
                    "{}: {}{not_null}",
                    child.name().unwrap_or_default(),
                    type_name(child)
                )
            }
            _ => "?".to_owned(),
        }
    };
    let children = || -> String {
        let n = field.children().map_or(0, |c| c.len());
        (0..n).map(child).collect::<Vec<_>>().join(", ")
    };
    let bare = match field.type_type() {
        Type::Null => "null".to_owned(),
        Type::Bool => "bool".to_owned(),
        Type::Int => field.type_as_int().map_or("int?".to_owned(), |i| {
            format!("{}int{}", if i.is_signed() { "" } else { "u" }, i.bitWidth())
        }),
        Type::FloatingPoint => match field.type_as_floating_point().map(|f| f.precision()) {
            Some(Precision::HALF) => "halffloat".to_owned(),
            Some(Precision::SINGLE) => "float".to_owned(),
            _ => "double".to_owned(),
        },
        Type::Utf8 => "string".to_owned(),
        Type::LargeUtf8 => "large_string".to_owned(),
        Type::Utf8View => "string_view".to_owned(),
        Type::Binary => "binary".to_owned(),
        Type::LargeBinary => "large_binary".to_owned(),
        Type::BinaryView => "binary_view".to_owned(),
        Type::FixedSizeBinary => "fixed_size_binary".to_owned(),
        Type::List => format!("list<{}>", child(0)),
        Type::LargeList => format!("large_list<{}>", child(0)),
        Type::ListView => format!("list_view<{}>", child(0)),
        Type::LargeListView => format!("large_list_view<{}>", child(0)),
        Type::FixedSizeList => {
            format!(
                "fixed_size_list<{}>[{}]",
                child(0),
                field.type_as_fixed_size_list().map_or(-1, |l| l.listSize())
            )
        }
        Type::Struct_ => format!("struct<{}>", children()),
        Type::Map => format!("map<{}>", children()),
        Type::Union => format!("union<{}>", children()),
        Type::RunEndEncoded => format!("run_end_encoded<{}>", children()),
        Type::Timestamp => match field.type_as_timestamp().map(|t| t.unit()) {
            Some(TimeUnit::SECOND) => "timestamp[s]".to_owned(),
            Some(TimeUnit::MILLISECOND) => "timestamp[ms]".to_owned(),
            Some(TimeUnit::MICROSECOND) => "timestamp[us]".to_owned(),
            _ => "timestamp[ns]".to_owned(),
        },
        other => other.variant_name().unwrap_or("unknown").to_lowercase(),
    };
    if field.dictionary().is_some() {
        format!("dictionary<{bare}>")
    } else {
        bare
    }
}
