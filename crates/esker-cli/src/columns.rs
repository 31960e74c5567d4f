//! Arrow IPC and Parquet: pairs gathered into batches of two columns, which a writer of the format takes.
//!
//! ```text
//! pair, pair, ... -> [key][value] up to BATCH_BYTES or BATCH_ROWS -> arrow: written at once
//!                                                                    parquet: encoded, written by row groups
//! ```
//! So memory stays at a batch and a row group, whatever the store's size. No column has nulls: a value that is not of the type
//! asked for ends the export by name, for one that silently became null would be lost.

use std::sync::Arc;

use arrow_array::builder::{BinaryBuilder, Float64Builder, Int64Builder, StringBuilder};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_ipc::writer::FileWriter;
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use esker::aggregate::{decimal, integer};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;

use crate::args::{ColumnType, ExportArgs, ExportFormat};
use crate::export::{Output, PairWriter};
use crate::failure::{Failure, Outcome};

/// A batch is over with the pair that reaches one of these. Far below what offsets of 32 bits count, with the longest value.
const BATCH_ROWS: usize = 1 << 16;
const BATCH_BYTES: usize = 8 << 20;
/// Encoded bytes of a row group, which Parquet holds until they are written.
const ROW_GROUP_BYTES: usize = 64 << 20;

/// The writer of a format.
pub(crate) fn writer(args: &ExportArgs, output: Output) -> Result<Box<dyn PairWriter>, Failure> {
    let columns = [args.key_type, args.value_type].map(|kind| Column::new(kind.unwrap_or_default()));
    let fields: Vec<_> = ["key", "value"].iter().zip(&columns).map(|(name, column)| Field::new(*name, column.data_type(), false)).collect();
    let schema = Arc::new(Schema::new(fields));
    let sink: Box<dyn Sink> = match args.format {
        ExportFormat::Parquet => Box::new(parquet_sink(output, schema.clone())?),
        _ => Box::new(FileWriter::try_new(output, &schema).map_err(arrow_failure)?),
    };
    Ok(Box::new(Batches { schema, columns, rows: 0, bytes: 0, sink }))
}

fn parquet_sink(output: Output, schema: SchemaRef) -> Result<ArrowWriter<Output>, Failure> {
    let properties =
        WriterProperties::builder().set_compression(Compression::SNAPPY).set_max_row_group_bytes(Some(ROW_GROUP_BYTES)).build();
    ArrowWriter::try_new(output, schema, Some(properties)).map_err(parquet_failure)
}

/// What takes batches.
trait Sink {
    fn take(&mut self, batch: &RecordBatch) -> Outcome;
    fn finish(&mut self) -> Outcome;
}

impl Sink for FileWriter<Output> {
    fn take(&mut self, batch: &RecordBatch) -> Outcome {
        self.write(batch).map_err(arrow_failure)
    }

    fn finish(&mut self) -> Outcome {
        FileWriter::finish(self).and_then(|()| self.flush()).map_err(arrow_failure)
    }
}

impl Sink for ArrowWriter<Output> {
    fn take(&mut self, batch: &RecordBatch) -> Outcome {
        self.write(batch).map_err(parquet_failure)
    }

    fn finish(&mut self) -> Outcome {
        ArrowWriter::finish(self).map_err(parquet_failure)?;
        std::io::Write::flush(self.inner_mut()).map_err(|error| Failure::written(&error))
    }
}

fn arrow_failure(error: ArrowError) -> Failure {
    match error {
        ArrowError::IoError(_, error) => Failure::written(&error),
        error => Failure::new(error.to_string()),
    }
}

fn parquet_failure(error: ParquetError) -> Failure {
    match error {
        ParquetError::External(error) => match error.downcast::<std::io::Error>() {
            Ok(error) => Failure::written(&error),
            Err(error) => Failure::new(error.to_string()),
        },
        error => Failure::new(error.to_string()),
    }
}

/// Pairs on their way into a batch.
struct Batches {
    schema: SchemaRef,
    columns: [Column; 2],
    rows: usize,
    bytes: usize,
    sink: Box<dyn Sink>,
}

impl Batches {
    fn send(&mut self) -> Outcome {
        (self.rows, self.bytes) = (0, 0);
        let arrays = self.columns.iter_mut().map(Column::finish).collect();
        let batch = RecordBatch::try_new(self.schema.clone(), arrays).map_err(arrow_failure)?;
        self.sink.take(&batch)
    }
}

impl PairWriter for Batches {
    fn pair(&mut self, key: &[u8], value: &[u8]) -> Outcome {
        for (column, (what, bytes)) in self.columns.iter_mut().zip([("key", key), ("value", value)]) {
            if column.append(bytes).is_none() {
                return Err(Failure::new(format!("the {what} of `{}` is not {}", key.escape_ascii(), column.name())));
            }
        }
        self.rows += 1;
        self.bytes += key.len() + value.len();
        if self.rows == BATCH_ROWS || self.bytes >= BATCH_BYTES { self.send() } else { Ok(()) }
    }

    fn finish(&mut self) -> Outcome {
        if self.rows > 0 {
            self.send()?;
        }
        self.sink.finish()
    }
}

/// A column of a batch.
enum Column {
    Bytes(BinaryBuilder),
    Text(StringBuilder),
    Integer(Int64Builder),
    Float(Float64Builder),
}

impl Column {
    fn new(kind: ColumnType) -> Self {
        match kind {
            ColumnType::Bytes => Self::Bytes(BinaryBuilder::new()),
            ColumnType::Text => Self::Text(StringBuilder::new()),
            ColumnType::Integer => Self::Integer(Int64Builder::new()),
            ColumnType::Float => Self::Float(Float64Builder::new()),
        }
    }

    fn data_type(&self) -> DataType {
        match self {
            Self::Bytes(_) => DataType::Binary,
            Self::Text(_) => DataType::Utf8,
            Self::Integer(_) => DataType::Int64,
            Self::Float(_) => DataType::Float64,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Bytes(_) => "bytes",
            Self::Text(_) => "UTF-8",
            Self::Integer(_) => "a whole number of 64 bits",
            Self::Float(_) => "a number",
        }
    }

    /// One more; `None` if the bytes are not of the column's type.
    fn append(&mut self, bytes: &[u8]) -> Option<()> {
        match self {
            Self::Bytes(column) => column.append_value(bytes),
            Self::Text(column) => column.append_value(std::str::from_utf8(bytes).ok()?),
            Self::Integer(column) => column.append_value(integer(bytes)?),
            Self::Float(column) => column.append_value(decimal(bytes).filter(|number| number.is_finite())?),
        }
        Some(())
    }

    fn finish(&mut self) -> ArrayRef {
        match self {
            Self::Bytes(column) => Arc::new(column.finish()),
            Self::Text(column) => Arc::new(column.finish()),
            Self::Integer(column) => Arc::new(column.finish()),
            Self::Float(column) => Arc::new(column.finish()),
        }
    }
}
