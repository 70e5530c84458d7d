"""The database: tables, connections, transactions and statements."""
