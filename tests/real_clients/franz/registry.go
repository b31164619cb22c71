package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/sr"
)

var kinds = map[string]sr.SchemaType{"AVRO": sr.TypeAvro, "PROTOBUF": sr.TypeProtobuf, "JSON": sr.TypeJSON}

// What the first line of stdin asks for: data to be framed with a schema, or a framed value.
type asked struct {
	Subject string `json:"subject"`
	Schema  string `json:"schema"`
	Kind    string `json:"kind"`
	Index   []int  `json:"index"`
	Data    []byte `json:"data"`
	Framed  []byte `json:"framed"`
}

// framed registers a schema and prints what its serializer writes for data that are encoded already. Then it
// prints what its deserializer finds in the other value: the data, and the schema that its id has.
func framed(ctx context.Context, url string) {
	registry, err := sr.NewClient(sr.URLs(url))
	check(err)
	var wanted asked
	check(json.NewDecoder(bufio.NewReader(os.Stdin)).Decode(&wanted))
	schema := sr.Schema{Schema: wanted.Schema, Type: kinds[wanted.Kind]}
	made, err := registry.CreateSchema(ctx, wanted.Subject, schema)
	check(err)
	serde := sr.NewSerde()
	options := []sr.EncodingOpt{
		sr.EncodeFn(func(value any) ([]byte, error) { return value.([]byte), nil }),
		sr.DecodeFn(func(data []byte, value any) error {
			*value.(*[]byte) = append([]byte(nil), data...)
			return nil
		}),
	}
	if len(wanted.Index) > 0 {
		options = append(options, sr.Index(wanted.Index...))
	}
	serde.Register(made.ID, []byte(nil), options...)
	encoded, err := serde.Encode(wanted.Data)
	check(err)
	fmt.Println(base64.StdEncoding.EncodeToString(encoded))
	var data []byte
	check(serde.Decode(wanted.Framed, &data))
	id, _, err := serde.DecodeID(wanted.Framed)
	check(err)
	known, err := registry.SchemaByID(ctx, id)
	check(err)
	fmt.Println(base64.StdEncoding.EncodeToString(data))
	fmt.Println(base64.StdEncoding.EncodeToString([]byte(known.Schema)))
}
