-- Databases besides that of Prefect, which PostgreSQL's image makes: once, when its volume is new.
CREATE DATABASE mlflow;
CREATE DATABASE fleet;
CREATE DATABASE locks;
