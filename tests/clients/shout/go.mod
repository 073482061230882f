module shout

go 1.24
