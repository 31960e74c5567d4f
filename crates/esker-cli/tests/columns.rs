//! `export` to Arrow IPC and Parquet, read back with the readers of those formats.

#![allow(missing_docs)]

mod common;

#[cfg(not(feature = "arrow"))]
#[test]
fn a_program_without_them_says_what_to_enable() {
    let place = common::Place::new();
    place.ok("put store a 1");
    for format in ["arrow", "parquet"] {
        place.fails(
            &format!("export store --format {format} --output pairs"),
            &format!("--format {format} needs a program built with the feature `arrow`"),
        );
        assert!(!place.path("pairs").exists());
    }
}

#[cfg(feature = "arrow")]
mod read_back {
    use std::collections::BTreeMap;
    use std::fs::File;

    use arrow_array::cast::AsArray;
    use arrow_array::types::{Float64Type, Int64Type};
    use arrow_array::{Array, RecordBatch};
    use arrow_ipc::reader::FileReader;
    use arrow_schema::DataType;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    use super::common::Place;

    fn read(place: &Place, format: &str, options: &str) -> Vec<RecordBatch> {
        place.ok(format!("export store --format {format} --output pairs.{format} {options}").trim());
        let file = File::open(place.path(&format!("pairs.{format}"))).unwrap();
        match format {
            "arrow" => FileReader::try_new(file, None).unwrap().map(Result::unwrap).collect(),
            _ => ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap().map(Result::unwrap).collect(),
        }
    }

    fn bytes(batches: &[RecordBatch]) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let pairs = batches.iter().flat_map(|batch| batch.column(0).as_binary::<i32>().iter().zip(batch.column(1).as_binary::<i32>()));
        pairs.map(|(key, value)| (key.unwrap().to_vec(), value.unwrap().to_vec())).collect()
    }

    #[test]
    fn every_pair_once_in_several_batches() {
        let place = Place::new();
        let rows: String = (0..150_000).map(|n| format!("k{n},{}\n", "v".repeat(n % 300))).collect();
        place.write("rows.csv", format!("id,text\n{rows}"));
        place.ok("load store rows.csv --key id --value text");
        place.ok("delete store k7");
        let want = (0..150_000).filter(|n| *n != 7).map(|n| (format!("k{n}").into_bytes(), "v".repeat(n % 300).into_bytes()));
        let want: BTreeMap<_, _> = want.collect();
        for format in ["arrow", "parquet"] {
            let batches = read(&place, format, "");
            assert!(batches.len() > 2 && batches.iter().all(|batch| batch.num_rows() <= 1 << 16), "{format}");
            assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), want.len());
            assert!(bytes(&batches) == want, "{format}: the pairs differ");
        }
        assert_eq!(bytes(&read(&place, "arrow", "--prefix k14999")).len(), 11);
    }

    #[test]
    fn numbers_and_text_if_they_are() {
        let place = Place::new();
        place.write("orders.csv", "id,amount\n1,10\n2,-20\n3,2.5\n");
        place.ok("load store orders.csv --key id --value amount");
        for format in ["arrow", "parquet"] {
            let batches = read(&place, format, "--key-type integer --value-type float");
            let keys: i64 = batches[0].column(0).as_primitive::<Int64Type>().values().iter().sum();
            let values: f64 = batches[0].column(1).as_primitive::<Float64Type>().values().iter().sum();
            assert_eq!((batches.len(), keys, values), (1, 6, -7.5));
            let batches = read(&place, format, "--key-type text");
            assert_eq!(batches[0].column(0).data_type(), &DataType::Utf8);
            assert!(batches[0].schema().fields().iter().map(|field| field.name()).eq(["key", "value"]));
            // What is no whole number is told, and the file of before stays.
            place.fails(
                &format!("export store --format {format} --output pairs.{format} --value-type integer"),
                "the value of `3` is not a whole number",
            );
            assert!(place.path(&format!("pairs.{format}")).exists());
        }
    }

    #[test]
    fn an_empty_store_is_an_empty_table() {
        let place = Place::new();
        place.ok("put store a 1");
        place.ok("delete store a");
        for format in ["arrow", "parquet"] {
            assert_eq!(read(&place, format, "").iter().map(RecordBatch::num_rows).sum::<usize>(), 0);
        }
    }
}
