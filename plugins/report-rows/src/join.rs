//! Makes one table of several.
//!
//! In: tables, and the name of a key column if rows belong together by a key. Out: one table. Rows of several
//! tables with the same key become one row, and no row is lost: a table without this key leaves its cells
//! empty. Without a key column, the tables follow one another, and the first column names the table.
//!
//! Not here: the file (`csv`).

use std::collections::HashMap;

use crate::Table;

/// Joins tables by a key. Columns of a later table that an earlier one has, too, get the table's name in
/// front. The error names the table that cannot be joined.
pub fn by_key(tables: &[Table], key: &str) -> Result<Table, String> {
    let mut columns = vec![key.to_owned()];
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for table in tables {
        let at = table.columns.iter().position(|column| column == key);
        let at = at.ok_or_else(|| format!("the table `{}` has no column `{key}`", table.name))?;
        let first = columns.len();
        for column in table.columns.iter().filter(|column| *column != key) {
            let is_taken = columns.contains(column);
            columns.push(if is_taken { format!("{}.{column}", table.name) } else { column.clone() });
        }
        let mut seen = vec![false; rows.len()];
        for row in &table.rows {
            let place = *places.entry(&row[at]).or_insert_with(|| {
                rows.push(vec![row[at].clone()]);
                rows.len() - 1
            });
            seen.resize(rows.len(), false);
            if std::mem::replace(&mut seen[place], true) {
                return Err(format!("the table `{}` has two rows with one value of `{key}`", table.name));
            }
            let joined = &mut rows[place];
            joined.resize(first, String::new());
            joined.extend(row.iter().enumerate().filter(|(n, _)| *n != at).map(|(_, cell)| cell.clone()));
        }
    }
    rows.iter_mut().for_each(|row| row.resize(columns.len(), String::new()));
    Ok(Table { name: String::new(), columns, rows })
}

/// Puts tables one below the other.
pub fn stacked(tables: &[Table]) -> Table {
    let mut columns = vec!["table".to_owned()];
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut rows = Vec::new();
    for table in tables {
        for column in &table.columns {
            places.entry(column).or_insert_with(|| {
                columns.push(column.clone());
                columns.len() - 1
            });
        }
        for cells in &table.rows {
            let mut row = vec![String::new(); columns.len()];
            row[0].clone_from(&table.name);
            for (column, cell) in table.columns.iter().zip(cells) {
                row[places[column.as_str()]].clone_from(cell);
            }
            rows.push(row);
        }
    }
    rows.iter_mut().for_each(|row: &mut Vec<String>| row.resize(columns.len(), String::new()));
    Table { name: String::new(), columns, rows }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Format;

    fn table(name: &str, csv: &str) -> Table {
        Format::Csv.read(name, csv).unwrap()
    }

    #[test]
    fn rows_with_one_key_become_one_and_none_is_lost() {
        let tables = [table("orders", "id,sum\n1,10\n2,20\n"), table("paid", "day,id,sum\nMo,2,5\nTu,3,6\n")];
        let joined = by_key(&tables, "id").unwrap();
        assert_eq!(joined.columns, ["id", "sum", "day", "paid.sum"]);
        assert_eq!(joined.rows, [["1", "10", "", ""], ["2", "20", "Mo", "5"], ["3", "", "Tu", "6"]]);
    }

    #[test]
    fn what_cannot_be_joined_is_named() {
        let tables = [table("orders", "id\n1\n"), table("paid", "day\nMo\n")];
        assert_eq!(by_key(&tables, "id").unwrap_err(), "the table `paid` has no column `id`");
        let twice = [table("orders", "id\n1\n1\n")];
        assert_eq!(
            by_key(&twice, "id").unwrap_err(),
            "the table `orders` has two rows with one value of `id`"
        );
    }

    #[test]
    fn tables_without_a_key_follow_one_another() {
        let tables = [table("a", "x,y\n1,2\n"), table("b", "table,y\nt,3\n")];
        let stacked = stacked(&tables);
        assert_eq!(stacked.columns, ["table", "x", "y", "table"]);
        assert_eq!(stacked.rows, [["a", "1", "2", ""], ["b", "", "3", "t"]]);
    }
}
