# frozen_string_literal: true

module EventMachine
  module Protocols
    # The server's side of saslauthd's protocol. A handler defines `validate(user, password, system, realm)`.
    module SASLauth
      FIELDS = 4
      private_constant :FIELDS

      def receive_data(data)
        (@sasl_input ||= String.new(encoding: Encoding::BINARY)) << data
        while (fields = take_fields)
          ok = validate(*fields) ? 'OK' : 'NO'
          send_data([ok.bytesize].pack('n') << ok)
        end
      end

      def validate(_user, _password, _system, _realm)
        false
      end

      private

      # Four strings, each after its length.
      def take_fields
        at = 0
        fields = Array.new(FIELDS) do
          return if @sasl_input.bytesize < at + 2

          length = @sasl_input[at, 2].unpack1('n')
          return if @sasl_input.bytesize < at + 2 + length

          at += 2 + length
          @sasl_input[at - length, length]
        end
        @sasl_input.slice!(0, at)
        fields
      end
    end

    # The client's side.
    module SASLauthclient
      # Returns a deferrable that succeeds if the server accepts the password.
      def validate?(username, password, sysname = nil, realm = nil)
        fields = [username, password, sysname, realm].map(&:to_s)
        raise ArgumentError, 'a field has at most 65,535 bytes' if fields.any? { |field| field.bytesize > 0xffff }

        (@sasl_waiting ||= []) << (waiting = DefaultDeferrable.new)
        send_data(fields.map { |field| [field.bytesize].pack('n') + field.b }.join)
        waiting
      end

      def receive_data(data)
        (@sasl_input ||= String.new(encoding: Encoding::BINARY)) << data
        while @sasl_input.bytesize >= 2 && @sasl_input.bytesize >= 2 + (length = @sasl_input.unpack1('n'))
          answer = @sasl_input.slice!(0, 2 + length)[2..]
          waiting = @sasl_waiting&.shift
          answer.start_with?('OK') ? waiting&.succeed : waiting&.fail(answer)
        end
      end

      def unbind
        waiting = @sasl_waiting || []
        @sasl_waiting = []
        waiting.each { |deferrable| deferrable.fail('the connection has ended') }
      end
    end
  end
end
