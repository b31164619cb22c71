package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Makes a token as a user, renews it as its renewer would, creates a topic by it with each SCRAM mechanism,
// and lets it expire. Prints the token's owner, and 1 if nobody can log in by it any more.
func tokens(ctx context.Context, user, password, prefix string) {
	own := kadm.NewClient(client(kgo.SASL(plain.Auth{User: user, Pass: password}.AsMechanism())))
	defer own.Close()
	token, err := own.CreateDelegationToken(ctx, kadm.CreateDelegationToken{MaxLifetime: -time.Millisecond})
	check(err)
	_, err = own.RenewDelegationToken(ctx, token.HMAC, time.Hour)
	check(err)
	login := scram.Auth{User: token.TokenID, Pass: base64.StdEncoding.EncodeToString(token.HMAC), IsToken: true}
	for _, mechanism := range []sasl.Mechanism{login.AsSha256Mechanism(), login.AsSha512Mechanism()} {
		by := kadm.NewClient(client(kgo.SASL(mechanism)))
		_, err = by.CreateTopic(ctx, 1, 1, nil, prefix+mechanism.Name())
		check(err)
		by.Close()
	}
	_, err = own.ExpireDelegationToken(ctx, token.HMAC, -time.Millisecond)
	check(err)
	late := client(kgo.SASL(login.AsSha512Mechanism()), kgo.RetryTimeout(time.Second))
	defer late.Close()
	refused := 0
	if late.Ping(ctx) != nil {
		refused = 1
	}
	fmt.Println(token.Owner.Name, refused)
}
