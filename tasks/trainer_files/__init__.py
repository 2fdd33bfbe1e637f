"""Files that trainers read: written from a store, and read into one."""
