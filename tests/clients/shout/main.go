// A guest as the compiler of Go makes it, with the imports of the Extism PDK.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

//go:wasmimport extism:host/env input_length
func inputLength() uint64

//go:wasmimport extism:host/env input_load_u8
func inputLoad(at uint64) uint32

//go:wasmimport extism:host/env alloc
func alloc(length uint64) uint64

//go:wasmimport extism:host/env store_u8
func store(at uint64, value uint32)

//go:wasmimport extism:host/env output_set
func outputSet(at uint64, length uint64)

func answer(text []byte) {
	at := alloc(uint64(len(text)))
	for i, b := range text {
		store(at+uint64(i), uint32(b))
	}
	outputSet(at, uint64(len(text)))
}

//go:wasmexport describe
func describe() int32 {
	answer([]byte(`{"description":"Shouts.","input_schema":{"type":"object"}}`))
	return 0
}

//go:wasmexport handle_tool_call
func handle() int32 {
	input := make([]byte, inputLength())
	for i := range input {
		input[i] = byte(inputLoad(uint64(i)))
	}
	var asked struct{ Text string }
	if err := json.Unmarshal(input, &asked); err != nil {
		panic(err)
	}
	_, opened := os.Open("/etc/passwd")
	fmt.Println("shouting")
	told, _ := json.Marshal(map[string]string{
		"content": fmt.Sprintf("%s! %v, %d variables", strings.ToUpper(asked.Text), opened, len(os.Environ())),
	})
	answer(told)
	return 0
}

func main() {}
